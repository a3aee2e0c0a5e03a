//! What the bytes of one side of a connection come from and go to. Every read and write of a
//! connection is here, so that what encrypts them is known nowhere else.

use crate::sys::Fd;
use std::io::Result;

pub enum Stream {
    Plain(Fd),
}

impl Stream {
    /// The descriptor whose readiness is waited for.
    pub fn fd(&self) -> &Fd {
        match self {
            Stream::Plain(fd) => fd,
        }
    }
    /// Bytes read into `buffer`; 0 at the end. Where nothing is there now: `WouldBlock`.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        match self {
            Stream::Plain(fd) => fd.recv(buffer),
        }
    }
    /// How many bytes of `parts`, one behind the other, were taken. Where none is taken now:
    /// `WouldBlock`.
    pub fn write(&mut self, parts: &[&[u8]]) -> Result<usize> {
        match self {
            Stream::Plain(fd) => fd.send(parts),
        }
    }
    /// Whether it has to read before it can go on with what it was asked for last.
    pub fn wants_read(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
        }
    }
    /// The same, of writing.
    pub fn wants_write(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
        }
    }
    /// Take leave of the peer, which may still send. What was written before is sent first.
    pub fn end_writing(&mut self) -> Result<()> {
        match self {
            Stream::Plain(fd) => fd.end_writing(),
        }
    }
}
