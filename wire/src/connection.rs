//! What one adopted connection is made of.

use crate::stream::Stream;
use crate::sys::{Epoll, Fd, EPOLLIN, EPOLLOUT};
use std::collections::VecDeque;
use std::io::{ErrorKind, Result};
use std::time::Instant;

/// A side that has more than this to be written takes too little.
pub const WRITTEN_BYTES: usize = 65_536;

/// One socket: what is half read, and what is to be written.
pub struct Side {
    pub stream: Stream,
    pub input: Vec<u8>,
    output: Vec<u8>,
    written: usize,
    interest: Option<u32>,
}

impl Side {
    pub fn new(fd: Fd) -> Side {
        Side {
            stream: Stream::Plain(fd),
            input: Vec::new(),
            output: Vec::new(),
            written: 0,
            interest: None,
        }
    }
    pub fn unwritten(&self) -> usize {
        self.output.len() - self.written
    }
    pub fn is_full(&self) -> bool {
        self.unwritten() > WRITTEN_BYTES
    }
    /// Write at once what the socket takes, if nothing waits before it; keep the rest.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let mut sent = 0;
        if self.unwritten() == 0 {
            match self.stream.write(&[bytes]) {
                Ok(count) => sent = count,
                Err(error) if would_block(&error) => {}
                Err(error) => return Err(error),
            }
        }
        if sent < bytes.len() {
            self.output.extend_from_slice(&bytes[sent..]);
        }
        Ok(())
    }
    /// Keep it until the connection is there.
    pub fn keep(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }
    pub fn flush(&mut self) -> Result<()> {
        while self.unwritten() > 0 {
            match self.stream.write(&[&self.output[self.written..]]) {
                Ok(count) => self.written += count,
                Err(error) if would_block(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.written = 0;
        self.output = Vec::new();
        Ok(())
    }
    /// Hear of these events; of none at all if it is 0, also not of a peer that is gone.
    pub fn watch(&mut self, epoll: &Epoll, reads: bool, writes: bool, data: u64) {
        let reads = reads || self.stream.wants_read();
        let writes = writes || self.stream.wants_write();
        let wanted = if reads { EPOLLIN } else { 0 } | if writes { EPOLLOUT } else { 0 };
        let wanted = (wanted != 0).then_some(wanted);
        if wanted == self.interest {
            return;
        }
        let changed = match (self.interest, wanted) {
            (None, Some(events)) => epoll.add(self.stream.fd(), events, data),
            (Some(_), Some(events)) => epoll.change(self.stream.fd(), events, data),
            _ => {
                epoll.remove(self.stream.fd());
                Ok(())
            }
        };
        if changed.is_ok() {
            self.interest = wanted;
        }
    }
}

pub fn would_block(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// The place of one answer in the order of a connection.
pub struct Slot {
    /// Bytes of the request, which count as held until it is answered.
    pub size: usize,
    pub answer: Option<Option<Vec<u8>>>,
    /// Python has a Produce in it.
    pub produce: bool,
}

#[derive(Clone, Copy)]
pub enum Owed {
    Slot { number: u64, api_key: i16, version: i16 },
    Token(u64),
    Barrier(u64),
}

/// An answer that the broker owes. It answers in order, so nothing else needs to be known.
pub struct Expected {
    pub correlation: i32,
    pub owed: Owed,
    /// How many requests without an answer were sent before it.
    pub without_answer: u64,
}

pub struct Conn {
    pub id: u64,
    pub client: Side,
    pub up: Option<Side>,
    pub connecting: bool,
    /// `sockaddr` of the broker.
    pub address: Vec<u8>,
    pub slots: VecDeque<Slot>,
    /// Number of the first of them.
    pub first: u64,
    pub held: usize,
    pub expected: VecDeque<Expected>,
    pub sent_without_answer: u64,
    pub served_without_answer: u64,
    /// False while a handler of Python has not run up to its first wait.
    pub begun: bool,
    /// That Python has and has not answered.
    pub produces: u32,
    pub full: bool,
    pub muted: bool,
    pub draining: bool,
    /// Since when nothing is taken in any more, and only written.
    pub ended: Option<Instant>,
    pub cut_off: bool,
    pub stalled: Option<Instant>,
    pub last_read: Instant,
    pub last_answer: Instant,
}

impl Conn {
    pub fn new(id: u64, client: Fd, address: Vec<u8>, now: Instant) -> Conn {
        Conn {
            id,
            client: Side::new(client),
            up: None,
            connecting: false,
            address,
            slots: VecDeque::new(),
            first: 0,
            held: 0,
            expected: VecDeque::new(),
            sent_without_answer: 0,
            served_without_answer: 0,
            begun: true,
            produces: 0,
            full: false,
            muted: false,
            draining: false,
            ended: None,
            cut_off: false,
            stalled: None,
            last_read: now,
            last_answer: now,
        }
    }
    pub fn open_slot(&mut self, size: usize, produce: bool) -> u64 {
        let number = self.first + self.slots.len() as u64;
        self.held += size;
        self.produces += u32::from(produce);
        self.slots.push_back(Slot { size, answer: None, produce });
        number
    }
    /// Take the first slot out.
    pub fn pop_slot(&mut self) -> Option<Slot> {
        let slot = self.slots.pop_front()?;
        self.first += 1;
        self.held -= slot.size;
        Some(slot)
    }
    /// Whether the next request may begin.
    pub fn admits(&self) -> bool {
        self.begun
            && !self.full
            && !self.muted
            && self.ended.is_none()
            && !self.client.is_full()
            && !self.up.as_ref().is_some_and(Side::is_full)
    }
    /// Whether the client would miss the broker.
    pub fn owes(&self) -> bool {
        self.sent_without_answer > self.served_without_answer
            || self
                .expected
                .iter()
                .any(|each| !matches!(each.owed, Owed::Barrier(_)))
    }
}
