//! The pass path of a gateway: docs/decisions/0034-a-native-pass-path.md.

pub mod abi;
mod connection;
mod crc;
mod engine;
mod input;
pub mod look;
pub mod records;
mod stream;
mod sys;
mod table;
#[cfg(test)]
mod tests;
mod tls;
mod told;
pub mod walks;
