//! What was read of a socket and is not dealt with yet.

use std::ops::{Deref, DerefMut};

/// What a buffer keeps of memory that it does not need.
pub const SPARE: usize = 16_384;
/// A buffer of more is not doubled, unless a single frame needs it.
const DOUBLED: usize = 524_288;

/// The bytes that are left, as a slice. Those before them go when they are as many: a peer that sends
/// thousands of small frames, of which each waits for its turn, has no byte moved more than once or
/// twice.
#[derive(Default)]
pub struct Input {
    bytes: Vec<u8>,
    /// Where what is left begins.
    at: usize,
}

impl Deref for Input {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.at..]
    }
}

impl DerefMut for Input {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.at..]
    }
}

impl Input {
    /// Bytes of memory.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
    /// Append what was read. The buffer grows as bytes arrive; while a frame of `needed` bytes is not
    /// whole, to no more than that.
    pub fn push(&mut self, more: &[u8], needed: usize) {
        if self.bytes.len() + more.len() > self.bytes.capacity() {
            self.close_up();
            let (have, will) = (self.bytes.capacity(), self.bytes.len() + more.len());
            if will > have {
                let most = if needed > self.bytes.len() { needed } else { DOUBLED };
                let grown = (2 * have).min(most).max(will);
                self.bytes.reserve_exact(grown - self.bytes.len());
            }
        }
        self.bytes.extend_from_slice(more);
    }
    /// The first `count` bytes are dealt with.
    pub fn done(&mut self, count: usize) {
        self.at += count;
        if self.at >= self.len() {
            self.close_up();
        }
    }
    /// The first `count` bytes, in the buffer that they are in.
    pub fn split(&mut self, count: usize) -> Vec<u8> {
        self.bytes.drain(..self.at);
        self.at = 0;
        let rest = self.bytes.split_off(count);
        std::mem::replace(&mut self.bytes, rest)
    }
    fn close_up(&mut self) {
        if self.at == 0 {
            return;
        }
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.shrink_to(SPARE.max(self.bytes.len()));
    }
}
