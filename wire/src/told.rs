//! What has happened for Python, until it takes it.

use std::mem::take;

/// Payloads of more keep the buffer that they came in.
const LARGE: usize = 65_536;

/// Kinds of messages.
pub mod kind {
    pub const FRAME: u32 = 1;
    pub const ANSWER: u32 = 2;
    pub const SLOT_ANSWER: u32 = 3;
    pub const LOST: u32 = 4;
    pub const ENDED: u32 = 5;
    pub const GONE: u32 = 6;
    pub const DIAL: u32 = 7;
    pub const DROPPED: u32 = 8;
    pub const HELD: u32 = 9;
    pub const LONG_FIRST: u32 = 10;
    pub const LEFT: u32 = 11;
    pub const SHAKEN: u32 = 12;
}

#[derive(Default)]
pub struct Told {
    /// Bytes of answers among what was not taken yet.
    answers: usize,
    heads: Vec<u8>,
    large: Vec<(Vec<u8>, usize)>,
    taken: (Vec<u8>, Vec<(Vec<u8>, usize)>),
}

impl Told {
    /// Kind, `aux`, connection, number, size, and where the payload is: 0: behind it.
    fn head(&mut self, what: u32, aux: u32, conn: u64, number: u64, size: usize, at: usize) {
        if what == kind::ANSWER || what == kind::SLOT_ANSWER {
            self.answers += size;
        }
        self.heads.extend_from_slice(&what.to_ne_bytes());
        self.heads.extend_from_slice(&aux.to_ne_bytes());
        for value in [conn, number, size as u64, at as u64] {
            self.heads.extend_from_slice(&value.to_ne_bytes());
        }
    }
    pub fn tell(&mut self, what: u32, aux: u32, conn: u64, number: u64, payload: &[u8]) {
        if payload.len() > LARGE {
            return self.tell_owned(what, aux, conn, number, payload.to_vec(), 0);
        }
        self.head(what, aux, conn, number, payload.len(), 0);
        self.heads.extend_from_slice(payload);
    }
    /// The payload is `owned` from `at` on.
    pub fn tell_owned(
        &mut self,
        what: u32,
        aux: u32,
        conn: u64,
        number: u64,
        owned: Vec<u8>,
        at: usize,
    ) {
        if owned.len() - at <= LARGE {
            return self.tell(what, aux, conn, number, &owned[at..]);
        }
        self.head(what, aux, conn, number, owned.len() - at, owned[at..].as_ptr() as usize);
        self.large.push((owned, at));
    }
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }
    pub fn answers(&self) -> usize {
        self.answers
    }
    /// All since the last call, which stays until the next.
    pub fn take(&mut self) -> &[u8] {
        self.answers = 0;
        self.taken = (take(&mut self.heads), take(&mut self.large));
        &self.taken.0
    }
    /// What was taken has been read.
    pub fn read(&mut self) {
        self.taken = Default::default();
    }
}
