//! CRC-32C (Castagnoli), by the processor where it knows that.

use crate::sys::crc32c_by_processor;

const POLYNOMIAL: u32 = 0x82F6_3B78;
const TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut made = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        made[0][byte] = crc;
        byte += 1;
    }
    let mut number = 1;
    while number < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = made[number - 1][byte];
            made[number][byte] = before >> 8 ^ made[0][(before & 0xFF) as usize];
            byte += 1;
        }
        number += 1;
    }
    made
}

pub fn crc32c(data: &[u8]) -> u32 {
    !crc32c_by_processor(!0, data).unwrap_or_else(|| by_tables(!0, data))
}

/// Eight bytes at a time.
pub fn by_tables(mut crc: u32, data: &[u8]) -> u32 {
    let (eights, rest) = data.split_at(data.len() - data.len() % 8);
    for eight in eights.chunks_exact(8) {
        let mut next = 0;
        for (number, byte) in eight.iter().enumerate() {
            let mixed = if number < 4 { byte ^ crc.to_le_bytes()[number] } else { *byte };
            next ^= TABLES[7 - number][mixed as usize];
        }
        crc = next;
    }
    for byte in rest {
        crc = crc >> 8 ^ TABLES[0][(byte ^ crc.to_le_bytes()[0]) as usize];
    }
    crc
}
