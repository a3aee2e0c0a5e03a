//! Events of sockets and calls of Python, each of which is one step.

use crate::connection::{would_block, Conn, Expected, Owed, Side};
use crate::sys::{Epoll, Event, Fd, Wake, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT};
use crate::walks::{
    answer_passes, fetch_most_at, header, named_topics, produce_acks, Header, Key, FETCH, NO_SESSION,
    PRODUCE,
};
use std::collections::HashSet;
use std::io::Result;
use std::time::{Duration, Instant};

const READ_BYTES: usize = 262_144;
/// A large frame's buffer begins with at most this, and grows as bytes arrive.
const FIRST_BYTES: usize = 1_048_576;
const STALL: Duration = Duration::from_secs(30);
const GRACE: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_secs(600);
const SWEEP: Duration = Duration::from_secs(1);
const BARRIER_CORRELATION: i32 = -2_000_000_000;
pub const STOP: u64 = u64::MAX;
pub const APIS: usize = 128;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Limits {
    pub max_frame: u64,
    pub max_answer: u64,
    /// Requests of a connection that are not answered.
    pub in_flight: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    Python,
    Pass,
    PassByTopics,
}

#[derive(Clone, Copy)]
pub struct Rule {
    pub treatment: Treatment,
    pub lowest: i16,
    pub highest: i16,
}

/// What is tracked, and how each API is treated.
pub struct Table {
    pub rules: [Rule; APIS],
    pub names: HashSet<Box<[u8]>>,
    pub ids: HashSet<[u8; 16]>,
}

impl Table {
    /// Everything is Python's.
    pub fn closed() -> Table {
        let rule = Rule { treatment: Treatment::Python, lowest: 0, highest: -1 };
        Table { rules: [rule; APIS], names: HashSet::new(), ids: HashSet::new() }
    }
    fn is_classic(&self, key: Key<'_>) -> bool {
        match key {
            Key::Name(name) => !self.names.contains(name),
            Key::Id(id) => !self.ids.contains(id),
            Key::Nothing => true,
        }
    }
}

/// Kinds of messages to Python.
pub mod kind {
    pub const FRAME: u32 = 1;
    pub const ANSWER: u32 = 2;
    pub const SLOT_ANSWER: u32 = 3;
    pub const REACHED: u32 = 4;
    pub const ENDED: u32 = 5;
}

enum Way {
    Pass(Header),
    PassUnanswered,
    Python { produce: bool },
}

struct Entry {
    generation: u32,
    conn: Option<Box<Conn>>,
}

pub struct Engine {
    pub epoll: std::sync::Arc<Epoll>,
    pub wake: Wake,
    entries: Vec<Entry>,
    free: Vec<u32>,
    pub table: Table,
    limits: Limits,
    scratch: Vec<u8>,
    told: Vec<u8>,
    taken: Vec<u8>,
    signalled: bool,
    swept: Instant,
    /// By API: requests that passed.
    pub passed: [u64; APIS],
}

fn index_of(id: u64) -> usize {
    (id & 0xFFFF_FFFF) as usize
}

impl Engine {
    pub fn new(limits: Limits, epoll: std::sync::Arc<Epoll>) -> Result<Engine> {
        Ok(Engine {
            epoll,
            wake: Wake::new()?,
            entries: Vec::new(),
            free: Vec::new(),
            table: Table::closed(),
            limits,
            scratch: vec![0; READ_BYTES],
            told: Vec::new(),
            taken: Vec::new(),
            signalled: false,
            swept: Instant::now(),
            passed: [0; APIS],
        })
    }

    // -- Python

    fn tell(&mut self, what: u32, aux: u32, conn: u64, number: u64, payload: &[u8]) {
        self.told.extend_from_slice(&what.to_ne_bytes());
        self.told.extend_from_slice(&aux.to_ne_bytes());
        self.told.extend_from_slice(&conn.to_ne_bytes());
        self.told.extend_from_slice(&number.to_ne_bytes());
        self.told.extend_from_slice(&(payload.len() as u64).to_ne_bytes());
        self.told.extend_from_slice(payload);
    }

    /// Wake Python if there is something to be taken that it has not been told of.
    pub fn signal(&mut self) {
        if !self.told.is_empty() && !self.signalled {
            self.signalled = true;
            self.wake.signal();
        }
    }

    /// All messages since the last call; they stay until the next one.
    pub fn take(&mut self) -> &[u8] {
        if self.signalled {
            self.wake.clear();
            self.signalled = false;
        }
        self.taken.clear();
        if self.taken.capacity() > FIRST_BYTES {
            self.taken = Vec::new();
        }
        std::mem::swap(&mut self.told, &mut self.taken);
        &self.taken
    }

    // -- connections

    pub fn adopt(&mut self, fd: Fd, address: Vec<u8>) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, conn: None });
            (self.entries.len() - 1) as u32
        });
        let entry = &mut self.entries[index as usize];
        entry.generation = (entry.generation + 1) & 0x7FFF_FFFF;
        let id = u64::from(entry.generation) << 32 | u64::from(index);
        fd.tune();
        let mut conn = Box::new(Conn::new(id, fd, address, Instant::now()));
        self.settle(&mut conn);
        self.entries[index as usize].conn = Some(conn);
        id
    }

    /// One step of a connection; `None` if it is gone.
    pub fn with<T>(&mut self, id: u64, step: impl FnOnce(&mut Engine, &mut Conn) -> T) -> Option<T> {
        let entry = self.entries.get_mut(index_of(id))?;
        if u64::from(entry.generation) != id >> 32 {
            return None;
        }
        let mut conn = entry.conn.take()?;
        let made = step(self, &mut conn);
        let over = conn.ended.is_some()
            && (conn.cut_off
                || conn.client.unwritten() == 0
                    && conn.up.as_ref().is_none_or(|up| up.unwritten() == 0));
        if over {
            self.free.push(index_of(id) as u32);
        } else {
            self.settle(&mut conn);
            self.entries[index_of(id)].conn = Some(conn);
        }
        Some(made)
    }

    /// A step has failed in the middle: its connection was dropped there, and is forgotten here.
    pub fn lost(&mut self, id: u64) {
        self.free.push(index_of(id) as u32);
        self.scratch.resize(READ_BYTES, 0); // which the step may have had
        self.tell(kind::ENDED, 1, id, 0, b"a defect of the native transport");
    }

    /// Which events the connection waits for now.
    fn settle(&self, conn: &mut Conn) {
        let reads = conn.admits() && !conn.draining;
        let writes = conn.client.unwritten() > 0;
        let reads_up = conn.ended.is_none() && !conn.client.is_full();
        conn.stalled = if conn.client.is_full() { conn.stalled.or_else(|| Some(Instant::now())) } else { None };
        conn.client.watch(&self.epoll, reads, writes, conn.id << 1);
        let connecting = conn.connecting;
        if let Some(up) = &mut conn.up {
            let writes = connecting || up.unwritten() > 0;
            up.watch(&self.epoll, reads_up && !connecting, writes, conn.id << 1 | 1);
        }
    }

    /// End both sides; what is written is still sent, unless it is `cut_off`.
    pub fn end(&mut self, conn: &mut Conn, reason: &str, cut_off: bool) {
        conn.cut_off |= cut_off;
        if conn.ended.is_none() {
            conn.ended = Some(Instant::now());
            conn.client.input = Vec::new();
            conn.slots.clear();
            conn.expected.clear();
            self.tell(kind::ENDED, 0, conn.id, 0, reason.as_bytes());
        }
    }

    // -- events

    pub fn event(&mut self, event: &Event) {
        let (events, data) = (event.events, event.data);
        self.with(data >> 1, |engine, conn| {
            if data & 1 == 0 {
                engine.client_event(conn, events);
            } else {
                engine.up_event(conn, events);
            }
        });
    }

    fn client_event(&mut self, conn: &mut Conn, events: u32) {
        if events & EPOLLOUT != 0 {
            if conn.client.flush().is_err() {
                return self.end(conn, "the client disconnected", true);
            }
            self.resume(conn);
        }
        if events & (EPOLLIN | EPOLLERR | EPOLLHUP) == 0 || conn.ended.is_some() {
            if events & (EPOLLERR | EPOLLHUP) != 0 {
                conn.cut_off = true;
            }
            return;
        }
        if conn.admits() && !conn.draining {
            self.read_client(conn);
        } else if events & (EPOLLERR | EPOLLHUP) != 0 {
            self.end(conn, "the client disconnected", true);
        }
    }

    fn read_client(&mut self, conn: &mut Conn) {
        conn.last_read = Instant::now();
        match receive(&mut conn.client, &mut self.scratch) {
            Got::Nothing => {}
            Got::Ended => self.end(conn, "the client disconnected", true),
            Got::Scratch(size) => {
                let mut scratch = std::mem::take(&mut self.scratch);
                let used = self.admit(conn, &mut scratch[..size]);
                if used < size && conn.ended.is_none() {
                    conn.client.input.extend_from_slice(&scratch[used..size]);
                }
                self.scratch = scratch;
            }
            Got::Input => self.resume(conn),
        }
    }

    /// Go on with what was read before.
    fn resume(&mut self, conn: &mut Conn) {
        if conn.client.input.is_empty() || !conn.admits() {
            return;
        }
        let mut input = std::mem::take(&mut conn.client.input);
        let used = self.admit(conn, &mut input);
        if conn.ended.is_none() && used < input.len() {
            input.drain(..used);
            conn.client.input = input;
        }
    }

    /// Begin the whole requests in `input`; how many bytes they are.
    fn admit(&mut self, conn: &mut Conn, input: &mut [u8]) -> usize {
        let (mut at, mut run) = (0, 0);
        while conn.admits() {
            let Some(size) = size_at(input, at) else { break };
            if !(1..=self.limits.max_frame as i64).contains(&size) {
                let most = self.limits.max_frame;
                self.send(conn, &input[run..at]);
                let reason = format!("the client sent a frame of {size} bytes: 1 to {most} are allowed");
                self.end(conn, &reason, false);
                return at;
            }
            let size = size as usize;
            if input.len() - at - 4 < size {
                break;
            }
            let frame = &mut input[at + 4..at + 4 + size];
            match self.way(conn, frame) {
                Way::Pass(header) => {
                    let number = conn.open_slot(size, false);
                    self.note(conn);
                    conn.expected.push_back(Expected {
                        correlation: header.correlation,
                        owed: Owed::Slot { number, api_key: header.api_key, version: header.api_version },
                        without_answer: conn.sent_without_answer,
                    });
                    self.passed[header.api_key as usize] += 1;
                }
                Way::PassUnanswered => {
                    conn.sent_without_answer += 1;
                    self.passed[PRODUCE as usize] += 1;
                }
                Way::Python { produce } => {
                    self.send(conn, &input[run..at]);
                    let number = conn.open_slot(size, produce);
                    self.note(conn);
                    conn.begun = false;
                    self.tell(kind::FRAME, 0, conn.id, number, &input[at + 4..at + 4 + size]);
                    run = at + 4 + size;
                }
            }
            at += 4 + size;
        }
        self.send(conn, &input[run..at]);
        at
    }

    /// Look whether the connection has as many requests under way as it may have.
    fn note(&self, conn: &mut Conn) {
        let (slots, held) = (conn.slots.len() as u64, conn.held as u64);
        let (most, bytes) = (self.limits.in_flight, self.limits.max_frame);
        conn.full = if conn.full {
            slots > most / 2 || held > bytes / 2
        } else {
            slots >= most || held >= bytes
        };
    }

    fn way(&self, conn: &Conn, frame: &mut [u8]) -> Way {
        let Some(head) = header(frame) else {
            return Way::Python { produce: false };
        };
        let produce = head.api_key == PRODUCE;
        let python = Way::Python { produce };
        let Some(rule) = usize::try_from(head.api_key).ok().and_then(|key| self.table.rules.get(key)) else {
            return python;
        };
        if rule.treatment == Treatment::Python
            || !(rule.lowest..=rule.highest).contains(&head.api_version)
        {
            return python;
        }
        if rule.treatment == Treatment::PassByTopics {
            if produce && conn.produces > 0 {
                return python;
            }
            let mut classic = true;
            let session = named_topics(frame, &head, &mut |key| classic &= self.table.is_classic(key));
            if session != Some(NO_SESSION) || !classic {
                return python;
            }
        }
        if produce {
            match produce_acks(frame, &head) {
                None => return python,
                Some(0) => return Way::PassUnanswered,
                Some(_) => {}
            }
        }
        if head.api_key == FETCH && head.api_version >= 4 {
            // Who is disconnected for an answer that is too long would ask for the same again.
            if let Some(at) = fetch_most_at(frame, &head) {
                let most = (self.limits.max_answer / 4 * 3).min(i32::MAX as u64) as i32;
                let asked: [u8; 4] = frame[at..at + 4].try_into().unwrap_or([0; 4]);
                if i32::from_be_bytes(asked) > most {
                    frame[at..at + 4].copy_from_slice(&most.to_be_bytes());
                }
            }
        }
        Way::Pass(head)
    }

    /// Frames, with their lengths, for the broker.
    fn send(&mut self, conn: &mut Conn, frames: &[u8]) {
        if frames.is_empty() || conn.ended.is_some() {
            return;
        }
        if conn.up.is_none() {
            match Fd::connecting(&conn.address) {
                Ok(fd) => {
                    fd.tune();
                    conn.connecting = true;
                    conn.up = Some(Side::new(fd));
                }
                Err(error) => return self.broker_lost(conn, &error.to_string(), true),
            }
        }
        let connecting = conn.connecting;
        let Some(up) = &mut conn.up else { return };
        if connecting {
            up.keep(frames);
        } else if let Err(error) = up.write(frames) {
            self.broker_lost(conn, &error.to_string(), false);
        }
    }

    fn broker_lost(&mut self, conn: &mut Conn, reason: &str, owed: bool) {
        let owed = owed || conn.owes() || conn.draining;
        conn.up = None;
        conn.connecting = false;
        if owed {
            return self.end(conn, &format!("broker: {reason}"), false);
        }
        for expected in std::mem::take(&mut conn.expected) {
            if let Owed::Barrier(token) = expected.owed {
                self.tell(kind::REACHED, 0, conn.id, token, &[]);
            }
        }
    }

    fn up_event(&mut self, conn: &mut Conn, events: u32) {
        let Some(up) = &mut conn.up else { return };
        if conn.connecting {
            if let Some(error) = up.stream.fd().error() {
                return self.broker_lost(conn, &error.to_string(), false);
            }
            conn.connecting = false;
        }
        if events & EPOLLOUT != 0 {
            if let Err(error) = up.flush() {
                return self.broker_lost(conn, &error.to_string(), false);
            }
            self.resume(conn);
        }
        if events & (EPOLLIN | EPOLLERR | EPOLLHUP) == 0 || conn.ended.is_some() {
            return;
        }
        let Some(up) = &mut conn.up else { return };
        match receive(up, &mut self.scratch) {
            Got::Nothing => return,
            Got::Ended => return self.broker_lost(conn, "the broker closed the connection", false),
            Got::Scratch(size) => {
                let scratch = std::mem::take(&mut self.scratch);
                let used = self.answers(conn, &scratch[..size]);
                if let (Some(up), true) = (&mut conn.up, used < size) {
                    up.input.extend_from_slice(&scratch[used..size]);
                }
                self.scratch = scratch;
            }
            Got::Input => {
                let mut input = std::mem::take(&mut up.input);
                let used = self.answers(conn, &input);
                if let (Some(up), true) = (&mut conn.up, used < input.len()) {
                    input.drain(..used);
                    up.input = input;
                }
            }
        }
        self.note(conn);
        self.resume(conn);
    }

    /// Deal with the whole answers in `input`; how many bytes they are.
    fn answers(&mut self, conn: &mut Conn, input: &[u8]) -> usize {
        let (mut at, mut run) = (0, 0);
        conn.last_answer = Instant::now();
        while conn.ended.is_none() {
            let Some(size) = size_at(input, at) else { break };
            if !(4..=self.limits.max_answer as i64).contains(&size) {
                let most = self.limits.max_answer;
                let reason = format!(
                    "the broker sent a frame of {size} bytes: 1 to {most} are allowed; if that is an \
                     answer, raise TIDELINE_GATEWAY_MAX_ANSWER_BYTES to what it needs"
                );
                self.broker_lost(conn, &reason, true);
                return at;
            }
            let size = size as usize;
            if input.len() - at - 4 < size {
                break;
            }
            let (here, next) = (at, at + 4 + size);
            let frame = &input[here + 4..next];
            let correlation = i32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]);
            let expected = match conn.expected.front() {
                Some(first) if first.correlation == correlation => conn.expected.pop_front(),
                _ => None,
            };
            let Some(expected) = expected else {
                self.broker_lost(conn, "the broker sent an answer that is not due", true);
                return at;
            };
            conn.served_without_answer = expected.without_answer;
            at = next;
            match expected.owed {
                Owed::Slot { number, api_key, version } => {
                    let passes = answer_passes(frame, api_key, version);
                    if passes && number == conn.first {
                        conn.pop_slot();
                        if conn.slots.front().is_some_and(|slot| slot.answer.is_some()) {
                            self.write(conn, &input[run..next]);
                            run = next;
                            self.write_filled(conn);
                        }
                        continue;
                    }
                    if passes {
                        self.store(conn, number, Some(frame.to_vec()));
                    } else {
                        let aux = (api_key as u32) << 16 | u32::from(version as u16);
                        self.tell(kind::SLOT_ANSWER, aux, conn.id, number, frame);
                    }
                }
                Owed::Token(token) => self.tell(kind::ANSWER, 0, conn.id, token, frame),
                Owed::Barrier(token) => self.tell(kind::REACHED, 0, conn.id, token, &[]),
            }
            self.write(conn, &input[run..here]);
            run = next;
        }
        self.write(conn, &input[run..at]);
        at
    }

    fn write(&mut self, conn: &mut Conn, frames: &[u8]) {
        if !frames.is_empty() && conn.ended.is_none() && conn.client.write(frames).is_err() {
            self.end(conn, "the client disconnected", true);
        }
    }

    fn store(&mut self, conn: &mut Conn, number: u64, answer: Option<Vec<u8>>) -> bool {
        let index = number.wrapping_sub(conn.first) as usize;
        let Some(slot) = conn.slots.get_mut(index) else { return false };
        if slot.answer.is_some() {
            return false;
        }
        slot.answer = Some(answer);
        if std::mem::take(&mut slot.produce) {
            conn.produces -= 1;
        }
        true
    }

    /// Write the answers that are there at the front of the order.
    fn write_filled(&mut self, conn: &mut Conn) {
        let mut frames = Vec::new();
        while conn.slots.front().is_some_and(|slot| slot.answer.is_some()) {
            if let Some(Some(answer)) = conn.pop_slot().and_then(|slot| slot.answer) {
                frames.extend_from_slice(&(answer.len() as u32).to_be_bytes());
                frames.extend_from_slice(&answer);
            }
        }
        self.write(conn, &frames);
    }

    // -- what Python asks for, of one connection

    pub fn begun(&mut self, conn: &mut Conn) {
        conn.begun = true;
        self.resume(conn);
    }

    /// `token` 0: the broker does not answer it.
    pub fn forward(&mut self, conn: &mut Conn, token: u64, frame: &[u8]) {
        if frame.len() < 8 {
            return;
        }
        if token == 0 {
            conn.sent_without_answer += 1;
        } else {
            conn.expected.push_back(Expected {
                correlation: i32::from_be_bytes([frame[4], frame[5], frame[6], frame[7]]),
                owed: Owed::Token(token),
                without_answer: conn.sent_without_answer,
            });
        }
        self.send_one(conn, frame);
    }

    pub fn barrier(&mut self, conn: &mut Conn, token: u64) {
        if conn.up.is_none() || conn.ended.is_some() {
            return self.tell(kind::REACHED, 0, conn.id, token, &[]);
        }
        conn.expected.push_back(Expected {
            correlation: BARRIER_CORRELATION,
            owed: Owed::Barrier(token),
            without_answer: conn.sent_without_answer,
        });
        let mut probe = vec![0, 18, 0, 0];
        probe.extend_from_slice(&BARRIER_CORRELATION.to_be_bytes());
        probe.extend_from_slice(b"\0\x10tideline-gateway");
        self.send_one(conn, &probe);
    }

    fn send_one(&mut self, conn: &mut Conn, frame: &[u8]) {
        let mut framed = Vec::with_capacity(4 + frame.len());
        framed.extend_from_slice(&(frame.len() as u32).to_be_bytes());
        framed.extend_from_slice(frame);
        self.send(conn, &framed);
    }

    pub fn fill(&mut self, conn: &mut Conn, number: u64, answer: Option<&[u8]>) {
        if conn.ended.is_none() && self.store(conn, number, answer.map(<[u8]>::to_vec)) {
            self.write_filled(conn);
            self.note(conn);
            self.resume(conn);
        }
    }

    pub fn mute(&mut self, conn: &mut Conn, muted: bool) {
        conn.muted = muted;
        self.resume(conn);
    }

    // -- time

    pub fn sweep(&mut self) {
        let now = Instant::now();
        if now - self.swept < SWEEP {
            return;
        }
        self.swept = now;
        for index in 0..self.entries.len() {
            let id = u64::from(self.entries[index].generation) << 32 | index as u64;
            self.with(id, |engine, conn| engine.bound(conn, now));
        }
    }

    fn bound(&mut self, conn: &mut Conn, now: Instant) {
        let passed = |since: Instant, most: Duration| now.saturating_duration_since(since) > most;
        if conn.ended.is_some_and(|ended| passed(ended, GRACE)) {
            conn.cut_off = true;
        } else if conn.stalled.is_some_and(|since| passed(since, STALL)) {
            self.end(conn, "it took no answers for 30 s", true);
        } else if conn.admits() && !conn.client.input.is_empty() && passed(conn.last_read, STALL) {
            self.end(conn, "it sent a part of a request and not the rest", false);
        } else if !conn.client.is_full()
            && conn.up.as_ref().is_some_and(|up| !up.input.is_empty())
            && passed(conn.last_answer, STALL)
        {
            self.end(conn, "the broker sent a part of an answer and then nothing", true);
        } else if conn.slots.is_empty() && passed(conn.last_read.max(conn.last_answer), IDLE) {
            self.end(conn, "idle for 600 s", false);
        }
    }
}

/// The length of the frame that begins at `at`, if it is there.
fn size_at(input: &[u8], at: usize) -> Option<i64> {
    let raw: [u8; 4] = input.get(at..at + 4)?.try_into().ok()?;
    Some(i64::from(i32::from_be_bytes(raw)))
}

enum Got {
    Nothing,
    Ended,
    /// So many bytes in the buffer that all share; nothing was there before them.
    Scratch(usize),
    /// More in the connection's own.
    Input,
}

/// Read once. What is half there has a buffer of its own, which grows as bytes arrive.
fn receive(side: &mut Side, scratch: &mut [u8]) -> Got {
    match side.stream.read(scratch) {
        Ok(0) => Got::Ended,
        Ok(size) if side.input.is_empty() => Got::Scratch(size),
        Ok(size) => {
            side.input.extend_from_slice(&scratch[..size]);
            Got::Input
        }
        Err(error) if would_block(&error) => Got::Nothing,
        Err(_) => Got::Ended,
    }
}
