//! What one adopted connection is made of.

use crate::input::{Input, SPARE};
use crate::stream::Stream;
use crate::sys::{Epoll, EPOLLIN, EPOLLOUT};
use crate::table::Sessions;
use std::collections::VecDeque;
use std::io::{ErrorKind, Result};
use std::time::Instant;

/// A side that has more than this to be written takes too little.
pub const WRITTEN_BYTES: usize = 65_536;
/// Frames of more are large: half of one counts, and goes on in its turn where there is no room.
pub const SMALL: usize = SPARE;

/// What a large frame counts with at first, as in `tideline/kafka/framing.py`; and a stranger's.
const FIRST: usize = 1_048_576;
const FIRST_OF_STRANGER: usize = 65_536;

/// What waits to be written, in order. Large pieces keep the buffer that they came in.
#[derive(Default)]
pub struct Output {
    chunks: VecDeque<Vec<u8>>,
    /// Bytes of the first that are written.
    written: usize,
    size: usize,
}

impl Output {
    pub fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.size += bytes.len();
        match self.chunks.back_mut() {
            Some(last) if last.len() + bytes.len() <= WRITTEN_BYTES => last.extend_from_slice(bytes),
            _ => self.chunks.push_back(bytes.to_vec()),
        }
    }
    /// The bytes of `owned` from `at` on.
    pub fn push_owned(&mut self, owned: Vec<u8>, at: usize) {
        if owned.len() - at < SMALL || at > 0 && !self.chunks.is_empty() {
            return self.push(&owned[at..]);
        }
        self.size += owned.len() - at;
        if at > 0 {
            self.written = at;
        }
        self.chunks.push_back(owned);
    }
    fn wrote(&mut self, mut count: usize) {
        self.size -= count;
        while let Some(first) = self.chunks.front() {
            let left = first.len() - self.written;
            if count < left {
                self.written += count;
                return;
            }
            count -= left;
            self.written = 0;
            self.chunks.pop_front();
        }
    }
    fn parts(&self) -> Vec<&[u8]> {
        let mut at = self.written;
        self.chunks.iter().map(|chunk| &chunk[std::mem::take(&mut at)..]).collect()
    }
}

/// One socket: what is half read, and what is to be written.
pub struct Side {
    /// None: it is not there yet, or not any more.
    pub stream: Option<Stream>,
    pub input: Input,
    output: Output,
    interest: Option<u32>,
}

impl Side {
    pub fn new(stream: Option<Stream>) -> Side {
        Side { stream, input: Input::default(), output: Output::default(), interest: None }
    }
    pub fn unwritten(&self) -> usize {
        self.output.size + self.stream.as_ref().map_or(0, Stream::unsent)
    }
    /// Whether hands are being shaken: nothing else is read or written until then.
    pub fn is_shaking(&self) -> bool {
        self.stream.as_ref().is_some_and(Stream::is_shaking)
    }
    /// Whether they should have been, by `now`.
    pub fn is_late(&self, now: Instant) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.is_late(now))
    }
    pub fn is_full(&self) -> bool {
        self.unwritten() > WRITTEN_BYTES
    }
    /// Write at once what the socket takes, if nothing waits before it; keep the rest.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let sent = self.write_now(&[bytes])?;
        self.output.push(&bytes[sent..]);
        Ok(())
    }
    /// The same of `head` and behind it `owned` from `at` on, which is kept without a copy.
    pub fn write_owned(&mut self, head: &[u8], owned: Vec<u8>, at: usize) -> Result<()> {
        let sent = self.write_now(&[head, &owned[at..]])?;
        self.output.push(&head[sent.min(head.len())..]);
        self.output.push_owned(owned, at + sent.saturating_sub(head.len()));
        Ok(())
    }
    fn write_now(&mut self, parts: &[&[u8]]) -> Result<usize> {
        match &mut self.stream {
            Some(stream) if self.output.size == 0 => match stream.write(parts) {
                Err(error) if would_block(&error) => Ok(0),
                told => told,
            },
            _ => Ok(0),
        }
    }
    pub fn flush(&mut self) -> Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        stream.flush()?;
        while self.output.size > 0 {
            match stream.write(&self.output.parts()) {
                Ok(count) => self.output.wrote(count),
                Err(error) if would_block(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.output = Output::default();
        Ok(())
    }
    /// Hear of these events; of none at all if there are none, also not of a peer that is gone:
    /// that cannot be masked, and would be heard of without end. False: the kernel does not take it.
    pub fn watch(&mut self, epoll: &Epoll, reads: bool, data: u64) -> bool {
        let Some(stream) = &self.stream else { return true };
        // What is kept until hands are shaken waits for reading.
        let writes = self.output.size > 0 && !stream.is_shaking() || stream.unsent() > 0;
        let reads = reads || stream.is_shaking();
        let wanted = if reads { EPOLLIN } else { 0 } | if writes { EPOLLOUT } else { 0 };
        let wanted = (wanted != 0).then_some(wanted);
        if wanted == self.interest {
            return true;
        }
        let changed = match (self.interest, wanted) {
            (None, Some(events)) => epoll.add(stream.fd(), events, data),
            (Some(_), Some(events)) => epoll.change(stream.fd(), events, data),
            _ => {
                epoll.remove(stream.fd());
                Ok(())
            }
        };
        self.interest = wanted;
        changed.is_ok()
    }
    /// The size of the large frame that is half read, if one is.
    pub fn large_half(&self) -> Option<usize> {
        // What stands there may be no length at all: it is looked at when it is its turn.
        let size = usize::try_from(size_at(&self.input, 0)?).ok()?;
        (size + 4 > SMALL && self.input.len() < size + 4).then_some(size)
    }
    /// Keep what was read and is not begun yet.
    pub fn keep(&mut self, bytes: &[u8]) {
        let needed = match size_at(&self.input, 0) {
            Some(size) if size > 0 => size as usize + 4,
            _ => 0,
        };
        self.input.push(bytes, needed);
    }
    /// Bytes of the buffer of a frame that is half read. Of a large one `first` count from its
    /// beginning on: who may begin it may go on to there.
    fn buffered(&self, first: usize) -> usize {
        let declared = self.large_half().map_or(0, |size| size.min(first));
        let there = self.input.capacity();
        declared.max(if there > SMALL { there } else { 0 })
    }
}

pub fn would_block(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// The length of the frame that begins at `at`, if it is there.
pub fn size_at(input: &[u8], at: usize) -> Option<i64> {
    let raw: [u8; 4] = input.get(at..at + 4)?.try_into().ok()?;
    Some(i64::from(i32::from_be_bytes(raw)))
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
    Slot {
        number: u64,
        api_key: i16,
        version: i16,
    },
    /// Somebody in Python waits for it; `own`: the gateway asks itself, and no client waits.
    Token {
        token: u64,
        own: bool,
    },
}

/// An answer that the broker owes. It answers in order, so nothing else needs to be known.
pub struct Expected {
    pub correlation: i32,
    pub owed: Owed,
    /// How many requests without an answer were sent before it.
    pub without_answer: u64,
}

/// How the client's side of a connection that has ended goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// What is written is still sent.
    Flush,
    /// The same; then our side ends, and what the client still sends is read and not looked at
    /// until it ends its own: the kernel would cut off what it has not read yet.
    HandOver,
}

pub struct Conn {
    pub id: u64,
    pub client: Side,
    pub up: Option<Side>,
    /// Of the broker's connection that is there or being opened; each has its own.
    pub dial: u64,
    pub slots: VecDeque<Slot>,
    /// Number of the first of them.
    pub first: u64,
    pub held: usize,
    stored: usize,
    pub expected: VecDeque<Expected>,
    pub sent_without_answer: u64,
    pub served_without_answer: u64,
    /// False while a handler of Python has not run up to its first wait.
    pub begun: bool,
    /// False while a client shakes hands, and until Python has let it in then.
    pub let_in: bool,
    /// The client has ended its side while a handler had not begun: what came before goes on.
    pub left: bool,
    /// It has not shown itself yet: all that it sends is Python's.
    pub young: bool,
    /// The same, of one that has: a login is under way, or has lapsed.
    pub hidden: bool,
    /// Python takes its first request although it is long.
    pub long_first: bool,
    /// The broker knows who the client is by this connection alone.
    pub bound: bool,
    /// The same, and the broker has ended it.
    pub lost: bool,
    /// Produces that Python has and has not answered.
    pub produces: u32,
    pub full: bool,
    pub muted: Option<Instant>,
    pub draining: bool,
    /// Since when nothing is taken in any more, and only written.
    pub ended: Option<Instant>,
    pub leave: Leave,
    pub end_written: bool,
    /// Whether the client, and the broker, are read.
    pub reads: (bool, bool),
    /// Since when the client takes no answers.
    pub stalled: Option<Instant>,
    pub last_read: Instant,
    pub large_since: Instant,
    pub last_active: Instant,
    pub last_answer: Instant,
    /// As the last request had it, of those that passed here.
    pub client_id: Vec<u8>,
    pub sessions: Sessions,
}

impl Conn {
    pub fn new(id: u64, client: Stream, now: Instant) -> Conn {
        Conn {
            id,
            client: Side::new(Some(client)),
            up: None,
            dial: 0,
            slots: VecDeque::new(),
            first: 0,
            held: 0,
            stored: 0,
            expected: VecDeque::new(),
            sent_without_answer: 0,
            served_without_answer: 0,
            begun: true,
            let_in: true,
            left: false,
            young: true,
            hidden: false,
            long_first: false,
            bound: false,
            lost: false,
            produces: 0,
            full: false,
            muted: None,
            draining: false,
            ended: None,
            leave: Leave::Flush,
            end_written: false,
            reads: (false, false),
            stalled: None,
            last_read: now,
            large_since: now,
            last_active: now,
            last_answer: now,
            client_id: Vec::new(),
            sessions: Sessions::new(),
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
        self.stored -= slot.answer.as_ref().and_then(Option::as_ref).map_or(0, Vec::len);
        Some(slot)
    }
    /// Whether the slot was there and open.
    pub fn store(&mut self, number: u64, answer: Option<Vec<u8>>) -> bool {
        let index = number.wrapping_sub(self.first) as usize;
        let Some(slot) = self.slots.get_mut(index) else { return false };
        if slot.answer.is_some() {
            return false;
        }
        self.stored += answer.as_ref().map_or(0, Vec::len);
        slot.answer = Some(answer);
        if std::mem::take(&mut slot.produce) {
            self.produces -= 1;
        }
        true
    }
    pub fn front_is_filled(&self) -> bool {
        self.slots.front().is_some_and(|slot| slot.answer.is_some())
    }
    /// Give everything back that an ended connection does not need to write what is written.
    pub fn clear(&mut self) {
        self.client.input = Input::default();
        if let Some(up) = &mut self.up {
            up.input = Input::default();
        }
        self.first += self.slots.len() as u64;
        self.slots = VecDeque::new();
        (self.held, self.stored, self.produces) = (0, 0, 0);
        self.expected = VecDeque::new();
        self.sessions = Sessions::new();
    }
    /// Whether the next request may begin.
    pub fn admits(&self) -> bool {
        self.begun && self.takes()
    }
    /// The same, once the one before it has begun.
    fn takes(&self) -> bool {
        !self.full
            && !self.lost
            && self.muted.is_none()
            && self.ended.is_none()
            && !self.client.is_full()
            && !self.up.as_ref().is_some_and(Side::is_full)
    }
    /// Whether more of the client may be read: also while a handler has not begun, so that it is
    /// noticed when the client leaves.
    pub fn may_be_read(&self, most: usize) -> bool {
        let reads_on = self.begun || self.client.input.len() < most;
        reads_on && self.takes() && !self.draining && !self.left
    }
    /// Whether a whole request waits for being begun.
    pub fn has_whole(&self) -> bool {
        match size_at(&self.client.input, 0) {
            Some(size) => self.client.input.len() as i64 >= size.saturating_add(4),
            None => false,
        }
    }
    /// Nothing is owed to the client, of what has arrived whole.
    pub fn is_idle(&self) -> bool {
        self.slots.is_empty() && self.begun && !self.has_whole()
    }
    /// It has ended, and nothing is left to be sent.
    pub fn is_over(&self) -> bool {
        self.ended.is_some() && self.client.stream.is_none() && self.up.is_none()
    }
    /// Whether the client would miss the broker.
    pub fn owes(&self) -> bool {
        self.sent_without_answer > self.served_without_answer
            || self.expected.iter().any(|each| !matches!(each.owed, Owed::Token { own: true, .. }))
    }
    /// Bytes that count into the room of the process: (of requests, of answers).
    pub fn weight(&self) -> (u64, u64) {
        let (to_broker, from_broker) =
            self.up.as_ref().map_or((0, 0), |up| (up.unwritten(), up.buffered(FIRST)));
        let first = if self.young { FIRST_OF_STRANGER } else { FIRST };
        let requests = self.held.max(to_broker) + self.client.buffered(first);
        let answers = self.stored + self.client.unwritten() + from_broker;
        (requests as u64, answers as u64)
    }
}
