//! Events of sockets and calls of Python, each of which is one step.

use crate::connection::{size_at, would_block, Conn, Expected, Leave, Owed, Side};
use crate::stream::Stream;
use crate::sys::{Epoll, Event, Wake, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT};
use crate::table::{fetch_within, Session, Table, Topics, Way, APIS};
use crate::tls::Context;
use crate::told::{kind, Told};
use crate::walks::{answer_passes, Header, PRODUCE};
use std::collections::HashSet;
use std::io::Result;
use std::sync::Arc;
use std::time::{Duration, Instant};

const READ_BYTES: usize = 262_144;
/// Of a long first request: its length, API and version, by which Python judges it.
const HEAD: usize = 4 + 4;
const SWEEP: Duration = Duration::from_secs(1);
/// So many bytes less are told at once where there is no room.
const STEP: u64 = 262_144;
/// More bytes of answers than these are not told to Python before it has taken what there is: those
/// of a broker that it looks into count with nobody until then.
const UNTAKEN: usize = 4_194_304;
/// How often in a row all connections are looked at, should one look lead to the next.
const AGAIN: u32 = 4;
pub const STOP: u64 = u64::MAX;
pub const BOUNDS: usize = 2;
/// Whom connections are with.
pub const CLIENTS: usize = 0;
pub const BROKERS: usize = 1;
const IN_FLIGHT: usize = 0;
const UNREAD_ANSWERS: usize = 1;
const BROKER_LEFT: &str = "the broker closed the connection";

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    Client = 0,
    Broker = 1,
    /// The broker sent more than may be taken.
    Answer = 2,
    Bound = 3,
    Python = 4,
    Defect = 5,
}

/// Numbers of bytes, requests and milliseconds, in the order of `tideline.kafka.wire.Limits`.
#[derive(Clone, Copy)]
pub struct Limits {
    pub max_frame: u64,
    pub max_answer: u64,
    /// Requests of a connection that are not answered.
    pub in_flight: u64,
    /// A longer first request is Python's to judge before it is read.
    pub first_frame: u64,
    /// A request of who has not shown himself has no more bytes.
    pub stranger_frame: u64,
    pub sweep: Duration,
    /// A client that takes no answers for so long ends.
    pub stall: Duration,
    /// How long a connection that has ended may take to send what was written.
    pub grace: Duration,
    /// Half a frame, and then nothing.
    pub half: Duration,
    /// What a muted client has sent is held no longer.
    pub muted: Duration,
    pub idle: Duration,
}

pub const LIMITS: usize = 11;

impl Limits {
    pub fn of(told: &[u64; LIMITS]) -> Limits {
        let ms = Duration::from_millis;
        Limits {
            max_frame: told[0].min(i32::MAX as u64),
            max_answer: told[1].min(i32::MAX as u64),
            in_flight: told[2],
            first_frame: told[3],
            stranger_frame: told[4].min(told[0]).min(i32::MAX as u64),
            sweep: ms(told[5]).min(SWEEP),
            stall: ms(told[6]),
            grace: ms(told[7]),
            half: ms(told[8]),
            muted: ms(told[9]),
            idle: ms(told[10]),
        }
    }
}

struct Entry {
    generation: u32,
    conn: Option<Box<Conn>>,
    /// What it counts with in the sums: (requests, answers).
    counted: (u64, u64),
}

pub struct Engine {
    pub epoll: Arc<Epoll>,
    pub wake: Wake,
    entries: Vec<Entry>,
    free: Vec<u32>,
    pub table: Table,
    /// By what connections with clients, and with brokers, are encrypted from now on.
    pub contexts: [Option<Arc<Context>>; 2],
    limits: Limits,
    scratch: Vec<u8>,
    told: Told,
    signalled: bool,
    swept: Instant,
    /// Bytes held: (of requests, of answers); and what Python was told of that.
    held: (u64, u64),
    held_told: (u64, u64),
    /// The sum of the counters when Python read them last.
    counted_told: u64,
    /// Python has to hear of the sum now.
    tell_held: bool,
    /// Python's room is full, and how many bytes may be held before it is asked.
    room_full: bool,
    allowance: u64,
    asked: bool,
    full: bool,
    /// Who goes on within a large frame while there is no room: a connection, and which side.
    turn: Option<(u64, bool)>,
    /// Every connection has to look whether it may read.
    look_again: bool,
    /// By API: requests that passed.
    pub passed: [u64; APIS],
    /// How often a bound held somebody back.
    pub bounds: [u64; BOUNDS],
}

fn index_of(id: u64) -> usize {
    (id & 0xFFFF_FFFF) as usize
}

impl Engine {
    pub fn new(limits: Limits, epoll: Arc<Epoll>) -> Result<Engine> {
        Ok(Engine {
            epoll,
            wake: Wake::new()?,
            entries: Vec::new(),
            free: Vec::new(),
            table: Table::closed(),
            contexts: [None, None],
            limits,
            scratch: vec![0; READ_BYTES],
            told: Told::default(),
            signalled: false,
            swept: Instant::now(),
            held: (0, 0),
            held_told: (0, 0),
            counted_told: 0,
            tell_held: false,
            room_full: false,
            allowance: u64::MAX,
            asked: false,
            full: false,
            turn: None,
            look_again: false,
            passed: [0; APIS],
            bounds: [0; BOUNDS],
        })
    }

    // -- Python

    /// The end of whatever was done: look again where that is due, and wake Python if there is
    /// something to be taken that it has not been told of.
    pub fn settled(&mut self) {
        let mut times = 0;
        while std::mem::take(&mut self.look_again) && times < AGAIN {
            times += 1;
            for index in 0..self.entries.len() {
                self.with(self.id_at(index), |_, _| ());
            }
        }
        self.report();
        if !self.told.is_empty() && !self.signalled {
            self.signalled = true;
            self.wake.signal();
        }
    }

    /// All messages since the last call; they stay until [`Engine::read`].
    pub fn take(&mut self) -> &[u8] {
        self.look_again |= self.lags();
        if self.signalled {
            self.wake.clear();
            self.signalled = false;
        }
        self.told.take()
    }

    pub fn read(&mut self) {
        self.told.read();
    }

    /// Whether Python has to take answers first.
    fn lags(&self) -> bool {
        self.told.answers() > UNTAKEN
    }

    /// Whether the broker of this connection waits for that: its next answer is one that Python
    /// looks into.
    fn waits_for_python(&self, conn: &Conn) -> bool {
        self.lags()
            && conn.expected.front().is_some_and(|next| match next.owed {
                Owed::Slot { api_key, .. } => self.table.looks(api_key),
                Owed::Token { .. } => true,
            })
    }

    // -- room

    /// Python has room for `allowance` bytes that are held here, before it has to be asked; `full`:
    /// for none more at present.
    pub fn room(&mut self, full: bool, allowance: u64) {
        (self.room_full, self.allowance, self.asked) = (full, allowance, false);
        self.look_at_room();
    }

    fn look_at_room(&mut self) {
        let total = self.held.0 + self.held.1;
        let full = self.room_full || total > self.allowance;
        if full != self.full {
            self.full = full;
            self.look_again = true;
        }
    }

    fn count(&mut self, index: usize, now: (u64, u64)) {
        let before = std::mem::replace(&mut self.entries[index].counted, now);
        self.held.0 = self.held.0 - before.0 + now.0;
        self.held.1 = self.held.1 - before.1 + now.1;
        self.look_at_room();
    }

    /// Tell Python of what is held, where it has to know at once.
    fn report(&mut self) {
        let (total, told) = (self.held.0 + self.held.1, self.held_told.0 + self.held_told.1);
        let due = !self.room_full && total > self.allowance && !self.asked
            || self.room_full && (total + STEP <= told || total == 0);
        if !std::mem::take(&mut self.tell_held) && !due {
            return;
        }
        // With it Python reads the counters.
        let counted = self.passed.iter().chain(&self.bounds).sum();
        if self.held != self.held_told || counted != self.counted_told {
            self.counted_told = counted;
            self.asked = true;
            self.held_told = self.held;
            self.told.tell(kind::HELD, 0, self.held.0, self.held.1, &[]);
        }
    }

    // -- connections

    fn id_at(&self, index: usize) -> u64 {
        u64::from(self.entries[index].generation) << 32 | index as u64
    }

    /// Nothing of a client that shakes hands is looked at before Python has let it in (`begun`).
    pub fn adopt(&mut self, client: Stream) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, conn: None, counted: (0, 0) });
            (self.entries.len() - 1) as u32
        });
        let entry = &mut self.entries[index as usize];
        entry.generation = (entry.generation + 1) & 0x7FFF_FFFF;
        let id = self.id_at(index as usize);
        let mut conn = Box::new(Conn::new(id, client, Instant::now()));
        conn.let_in = !conn.client.is_shaking();
        conn.begun = conn.let_in;
        self.entries[index as usize].conn = Some(conn);
        self.with(id, |_, _| ());
        id
    }

    /// One step of a connection; `None` if it is gone.
    pub fn with<T>(&mut self, id: u64, step: impl FnOnce(&mut Engine, &mut Conn) -> T) -> Option<T> {
        let index = index_of(id);
        let entry = self.entries.get_mut(index)?;
        if u64::from(entry.generation) != id >> 32 {
            return None;
        }
        let mut conn = entry.conn.take()?;
        let made = step(self, &mut conn);
        if conn.ended.is_some() {
            self.leave(&mut conn);
        }
        if !conn.is_over() {
            self.settle(&mut conn);
        }
        if conn.is_over() {
            self.forget(id);
        } else {
            self.count(index, conn.weight());
            self.entries[index].conn = Some(conn);
        }
        Some(made)
    }

    fn forget(&mut self, id: u64) {
        if self.turn.is_some_and(|(holder, _)| holder == id) {
            self.turn = None;
            self.look_again = true;
        }
        self.count(index_of(id), (0, 0));
        self.free.push(index_of(id) as u32);
        self.tell_held = true;
        self.told.tell(kind::GONE, 0, id, 0, &[]);
    }

    /// A step has failed in the middle: what it had taken out was dropped there, and is made good
    /// here.
    pub fn recover(&mut self) {
        self.scratch.resize(READ_BYTES, 0);
        let mut lost: HashSet<usize> = (0..self.entries.len()).collect();
        lost.retain(|index| self.entries[*index].conn.is_none());
        for index in &self.free {
            lost.remove(&(*index as usize));
        }
        for index in lost {
            let id = self.id_at(index);
            let reason = b"a defect of the native transport";
            self.told.tell(kind::ENDED, Cause::Defect as u32, id, 0, reason);
            self.forget(id);
        }
    }

    /// Whether a side may be read, as far as room goes. What is large and half read goes on in its
    /// turn, so that no two wait for each other.
    fn has_room(&mut self, conn: &Conn, is_client: bool, side: &Side, wanted: bool) -> bool {
        let me = (conn.id, is_client);
        let half = side.large_half().is_some();
        if self.full && wanted && half {
            return *self.turn.get_or_insert(me) == me;
        }
        if self.turn == Some(me) {
            self.turn = None;
            self.look_again = true;
        }
        // Short answers are always read: they free memory.
        wanted && !(self.full && is_client)
    }

    /// Which events the connection waits for now.
    fn settle(&mut self, conn: &mut Conn) {
        let stalls = conn.ended.is_none() && conn.client.is_full();
        if stalls && conn.stalled.is_none() {
            self.bounds[UNREAD_ANSWERS] += 1;
            conn.stalled = Some(Instant::now());
        } else if !stalls {
            conn.stalled = None;
        }
        let wanted = conn.may_be_read(READ_BYTES);
        let reads = self.has_room(conn, true, &conn.client, wanted);
        if reads && !conn.reads.0 {
            conn.last_read = Instant::now();
            conn.large_since = conn.last_read;
        }
        let hands_over = conn.ended.is_some() && conn.leave == Leave::HandOver;
        let mut watched = conn.client.watch(&self.epoll, reads || hands_over, conn.id << 1);
        let wanted_up = conn.ended.is_none() && !stalls && !self.waits_for_python(conn);
        let reads_up = match &conn.up {
            Some(up) => self.has_room(conn, false, up, wanted_up),
            None => false,
        };
        if reads_up && !conn.reads.1 {
            conn.last_answer = Instant::now();
        }
        if let Some(up) = &mut conn.up {
            watched &= up.watch(&self.epoll, reads_up, conn.id << 1 | 1);
        }
        conn.reads = (reads, reads_up);
        if !watched {
            self.cut_off(conn, Cause::Defect, "the kernel does not watch its socket");
            conn.up = None;
        }
    }

    /// Of a connection that has ended: let go of what has nothing to be written any more.
    fn leave(&mut self, conn: &mut Conn) {
        if let Some(up) = conn.up.as_mut().filter(|up| up.unwritten() == 0) {
            // An end that is not said could be an attacker's.
            let _ = up.stream.as_mut().filter(|stream| stream.is_encrypted()).map(Stream::end_writing);
            conn.up = None;
        }
        if conn.client.stream.is_some() && conn.client.unwritten() == 0 {
            if conn.leave == Leave::Flush {
                conn.client.stream = None;
            } else if !conn.end_written {
                conn.end_written = true;
                let ended = conn.client.stream.as_mut().map(Stream::end_writing);
                if !matches!(ended, Some(Ok(()))) {
                    conn.client.stream = None; // the client has cut it off
                }
            }
        }
    }

    /// End both sides; what is written is still sent.
    pub fn end(&mut self, conn: &mut Conn, cause: Cause, reason: &str, leave: Leave) {
        if conn.ended.is_none() {
            conn.ended = Some(Instant::now());
            // Of an encrypted one the end is said, and is not to be cut off either.
            let encrypted = conn.client.stream.as_ref().is_some_and(Stream::is_encrypted);
            conn.leave = if encrypted { Leave::HandOver } else { leave };
            conn.clear();
            self.told.tell(kind::ENDED, cause as u32, conn.id, 0, reason.as_bytes());
        }
    }

    /// The same, and nothing more is sent to the client.
    pub fn cut_off(&mut self, conn: &mut Conn, cause: Cause, reason: &str) {
        self.end(conn, cause, reason, Leave::Flush);
        conn.client = Side::new(None);
    }

    fn client_left(&mut self, conn: &mut Conn) {
        if let Some(stream) = conn.client.stream.as_mut().filter(|stream| stream.is_left()) {
            let _ = stream.end_writing(); // it may wait for our leave
        }
        self.cut_off(conn, Cause::Client, "the client disconnected");
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
        let gone = events & (EPOLLERR | EPOLLHUP) != 0;
        if conn.ended.is_none() && conn.client.is_shaking() {
            return self.shake(conn, events);
        }
        if events & EPOLLOUT != 0 {
            if conn.client.flush().is_err() {
                return self.client_left(conn);
            }
            self.resume(conn);
        }
        if conn.ended.is_some() {
            if gone || events & EPOLLIN != 0 && self.discard(conn) {
                self.client_left(conn);
            }
        } else if conn.reads.0 && conn.may_be_read(READ_BYTES) && (gone || events & EPOLLIN != 0) {
            self.read_client(conn);
        } else if gone {
            self.client_left(conn);
        }
    }

    /// Go on with a client's handshake, whether there is room for requests or not.
    fn shake(&mut self, conn: &mut Conn, events: u32) {
        if events & EPOLLOUT != 0 && conn.client.flush().is_err() {
            return self.client_left(conn);
        }
        if events & !EPOLLOUT == 0 {
            return;
        }
        self.read_client(conn);
        if let (None, Some(stream)) = (conn.ended, &conn.client.stream) {
            if !stream.is_shaking() {
                let told = stream.told();
                self.told.tell(kind::SHAKEN, 0, conn.id, 0, told.as_bytes());
            }
        }
    }

    /// Read what nobody looks at any more; whether that was the end.
    fn discard(&mut self, conn: &mut Conn) -> bool {
        match &mut conn.client.stream {
            Some(stream) => match stream.read(&mut self.scratch, READ_BYTES) {
                Ok(size) => size == 0,
                Err(error) => !would_block(&error),
            },
            None => false,
        }
    }

    fn read_client(&mut self, conn: &mut Conn) {
        match receive(&mut conn.client, &mut self.scratch, self.full) {
            Got::Nothing => {}
            Got::Failed(reason) => self.cut_off(conn, Cause::Client, &reason),
            Got::Ended if conn.begun || conn.client.is_shaking() => self.client_left(conn),
            Got::Ended => self.note_left(conn),
            Got::Bytes(size) => {
                conn.last_read = Instant::now();
                let mut scratch = std::mem::take(&mut self.scratch);
                if conn.client.input.is_empty() {
                    let used = self.admit(conn, &mut scratch[..size]);
                    if used < size && conn.ended.is_none() {
                        conn.client.keep(&scratch[used..size]);
                        conn.large_since = conn.last_read;
                    }
                } else {
                    conn.client.keep(&scratch[..size]);
                }
                self.scratch = scratch;
                self.resume(conn);
            }
        }
        let says_so = conn.client.stream.as_ref().is_some_and(Stream::is_left);
        if says_so && conn.ended.is_none() && !conn.left {
            // It may leave the socket open, so that nothing more would be heard of it.
            self.note_left(conn);
            self.resume(conn);
        }
    }

    /// The client has ended its side. What came before goes on; Python hears of it behind what it
    /// is given of that.
    fn note_left(&mut self, conn: &mut Conn) {
        conn.left = true;
        if !conn.begun && conn.let_in {
            self.told.tell(kind::LEFT, 0, conn.id, 0, &[]);
        }
    }

    /// Go on with what was read before.
    fn resume(&mut self, conn: &mut Conn) {
        self.go_on(conn);
        self.look_at_first(conn);
        if conn.left && conn.begun && conn.ended.is_none() && !conn.has_whole() {
            self.client_left(conn);
        }
    }

    fn go_on(&mut self, conn: &mut Conn) {
        while conn.admits() && !conn.client.input.is_empty() {
            let mut input = std::mem::take(&mut conn.client.input);
            let first = match size_at(&input, 0) {
                Some(size) if size > 0 => size as usize + 4,
                _ => 0,
            };
            let most = self.limits.max_frame as usize;
            if !conn.young && first > READ_BYTES && input.len() >= first && first - 4 <= most {
                // A large one goes on in the buffer that it has.
                let framed = input.split(first);
                self.begin_large(conn, framed);
                if conn.ended.is_none() {
                    conn.client.input = input;
                    conn.large_since = Instant::now();
                }
                continue;
            }
            let used = self.admit(conn, &mut input);
            if conn.ended.is_none() && used < input.len() {
                if used > 0 {
                    input.done(used);
                    conn.large_since = Instant::now();
                }
                conn.client.input = input;
            }
            return;
        }
    }

    /// A long request of one who has not shown himself is Python's to judge before it is read.
    fn look_at_first(&mut self, conn: &mut Conn) {
        if !conn.young || conn.long_first || conn.ended.is_some() || !conn.begun {
            return;
        }
        let Some(size) = conn.client.large_half() else { return };
        if size as u64 > self.limits.first_frame && conn.client.input.len() >= HEAD {
            conn.begun = false;
            let head = conn.client.input[4..HEAD].to_vec();
            self.told.tell(kind::LONG_FIRST, 0, conn.id, size as u64, &head);
        }
    }

    fn begin_large(&mut self, conn: &mut Conn, mut framed: Vec<u8>) {
        let size = framed.len() - 4;
        match self.way(conn, &mut framed[4..]) {
            Way::Pass(head) => {
                self.expect(conn, &head, size);
                self.send_owned(conn, &[], framed);
            }
            Way::PassUnanswered => {
                self.expect_nothing(conn);
                self.send_owned(conn, &[], framed);
            }
            Way::Python { produce } => {
                let number = self.give(conn, size, produce);
                self.told.tell_owned(kind::FRAME, 0, conn.id, number, framed, 4);
            }
        }
    }

    /// Begin the whole requests in `input`; how many bytes they are.
    fn admit(&mut self, conn: &mut Conn, input: &mut [u8]) -> usize {
        let (mut at, mut run) = (0, 0);
        while conn.admits() {
            let Some(size) = size_at(input, at) else { break };
            let most = if conn.young { self.limits.stranger_frame } else { self.limits.max_frame };
            if !(1..=most as i64).contains(&size) {
                self.send(conn, &input[run..at]);
                let reason = format!("the client sent a frame of {size} bytes: 1 to {most} are allowed");
                self.end(conn, Cause::Bound, &reason, Leave::Flush);
                return at;
            }
            let size = size as usize;
            if input.len() - at - 4 < size {
                break;
            }
            match self.way(conn, &mut input[at + 4..at + 4 + size]) {
                Way::Pass(head) => self.expect(conn, &head, size),
                Way::PassUnanswered => self.expect_nothing(conn),
                Way::Python { produce } => {
                    self.send(conn, &input[run..at]);
                    if conn.ended.is_some() {
                        return at;
                    }
                    let number = self.give(conn, size, produce);
                    let frame = &input[at + 4..at + 4 + size];
                    self.told.tell(kind::FRAME, 0, conn.id, number, frame);
                    run = at + 4 + size;
                }
            }
            at += 4 + size;
        }
        self.send(conn, &input[run..at]);
        at
    }

    /// A request passes, and is answered.
    fn expect(&mut self, conn: &mut Conn, head: &Header, size: usize) {
        let number = conn.open_slot(size, false);
        self.note(conn);
        conn.expected.push_back(Expected {
            correlation: head.correlation,
            owed: Owed::Slot { number, api_key: head.api_key, version: head.api_version },
            without_answer: conn.sent_without_answer,
        });
        self.passed[head.api_key as usize] += 1;
    }

    fn expect_nothing(&mut self, conn: &mut Conn) {
        conn.sent_without_answer += 1;
        self.passed[PRODUCE as usize] += 1;
    }

    /// A request is Python's: the number of its slot. None behind it begins before it has.
    fn give(&mut self, conn: &mut Conn, size: usize, produce: bool) -> u64 {
        let number = conn.open_slot(size, produce);
        self.note(conn);
        conn.begun = false;
        number
    }

    /// Look whether the connection has as many requests under way as it may have.
    fn note(&mut self, conn: &mut Conn) {
        let (slots, held) = (conn.slots.len() as u64, conn.held as u64);
        let (most, bytes) = (self.limits.in_flight, self.limits.max_frame);
        let before = conn.full;
        conn.full =
            if before { slots > most / 2 || held > bytes / 2 } else { slots >= most || held >= bytes };
        self.bounds[IN_FLIGHT] += u64::from(conn.full && !before);
    }

    fn way(&mut self, conn: &mut Conn, frame: &mut [u8]) -> Way {
        conn.last_active = Instant::now();
        if conn.young || conn.hidden {
            return Way::Python { produce: frame.starts_with(&PRODUCE.to_be_bytes()) };
        }
        let way = self.table.way(frame, &mut conn.sessions, conn.produces);
        if let Way::Pass(head) = &way {
            if conn.client_id != frame[8..head.body_start] {
                conn.client_id = frame[8..head.body_start].to_vec();
            }
            let most = (self.limits.max_answer / 4 * 3).min(i32::MAX as u64) as i32;
            fetch_within(frame, head, most);
        }
        way
    }

    /// The broker's side, which is opened with the first frame for it.
    fn broker<'a>(&mut self, conn: &'a mut Conn) -> &'a mut Side {
        if conn.up.is_none() {
            conn.dial += 1;
            self.told.tell(kind::DIAL, 0, conn.id, conn.dial, &[]);
        }
        conn.up.get_or_insert_with(|| Side::new(None))
    }

    /// Frames, with their lengths, for the broker.
    fn send(&mut self, conn: &mut Conn, frames: &[u8]) {
        if !frames.is_empty() && conn.ended.is_none() {
            let sent = self.broker(conn).write(frames);
            self.sent(conn, sent);
        }
    }

    fn send_owned(&mut self, conn: &mut Conn, head: &[u8], frame: Vec<u8>) {
        if conn.ended.is_none() {
            let sent = self.broker(conn).write_owned(head, frame, 0);
            self.sent(conn, sent);
        }
    }

    fn sent(&mut self, conn: &mut Conn, sent: Result<()>) {
        if let Err(error) = sent {
            self.broker_lost(conn, Cause::Broker, &error.to_string(), false);
        }
    }

    fn broker_lost(&mut self, conn: &mut Conn, cause: Cause, reason: &str, owes: bool) {
        conn.up = None;
        if conn.ended.is_some() {
            return;
        }
        if owes || conn.owes() || conn.draining {
            return self.end(conn, cause, reason, Leave::Flush);
        }
        // Python ends it, behind the answers that it has not taken: why a login is refused, say.
        conn.lost = conn.bound;
        for expected in std::mem::take(&mut conn.expected) {
            if let Owed::Token { token, .. } = expected.owed {
                self.told.tell(kind::LOST, 0, conn.id, token, reason.as_bytes());
            }
        }
        self.told.tell(kind::DROPPED, 0, conn.id, 0, reason.as_bytes());
    }

    fn up_event(&mut self, conn: &mut Conn, events: u32) {
        let Some(up) = &mut conn.up else { return };
        let gone = events & (EPOLLERR | EPOLLHUP) != 0;
        let shakes = up.is_shaking();
        if events & EPOLLOUT != 0 {
            if let Err(error) = up.flush() {
                return self.broker_lost(conn, Cause::Broker, &error.to_string(), false);
            }
            self.resume(conn);
        }
        if shakes && (gone || events & EPOLLIN != 0) {
            self.read_broker(conn); // also for what an ended one has still to send
        } else if conn.ended.is_some() {
            if gone {
                conn.up = None;
            }
        } else if conn.reads.1
            && !conn.client.is_full()
            && !self.waits_for_python(conn)
            && (gone || events & EPOLLIN != 0)
        {
            self.read_broker(conn);
        }
    }

    fn read_broker(&mut self, conn: &mut Conn) {
        let Some(up) = &mut conn.up else { return };
        let shakes = up.is_shaking();
        let got = receive(up, &mut self.scratch, self.full);
        if shakes && !up.is_shaking() {
            if let Err(error) = up.flush() {
                return self.broker_lost(conn, Cause::Broker, &error.to_string(), false);
            }
        }
        match got {
            Got::Nothing => return,
            Got::Failed(reason) => return self.broker_lost(conn, Cause::Broker, &reason, false),
            Got::Ended => {
                return self.broker_lost(conn, Cause::Broker, BROKER_LEFT, false);
            }
            Got::Bytes(size) => {
                conn.last_answer = Instant::now();
                let scratch = std::mem::take(&mut self.scratch);
                if up.input.is_empty() {
                    let used = self.answers(conn, &scratch[..size]);
                    if let (Some(up), true) = (&mut conn.up, used < size && conn.ended.is_none()) {
                        up.keep(&scratch[used..size]);
                    }
                } else {
                    up.keep(&scratch[..size]);
                    self.go_on_with_answers(conn);
                }
                self.scratch = scratch;
            }
        }
        if conn.up.as_ref().and_then(|up| up.stream.as_ref()).is_some_and(Stream::is_left) {
            return self.broker_lost(conn, Cause::Broker, BROKER_LEFT, false);
        }
        self.note(conn);
        self.resume(conn);
    }

    fn go_on_with_answers(&mut self, conn: &mut Conn) {
        let Some(up) = &mut conn.up else { return };
        let mut input = std::mem::take(&mut up.input);
        let used = self.answers(conn, &input);
        if let (Some(up), true) = (&mut conn.up, used < input.len() && conn.ended.is_none()) {
            input.done(used);
            up.input = input;
        }
    }

    /// Deal with the whole answers in `input`; how many bytes they are.
    fn answers(&mut self, conn: &mut Conn, input: &[u8]) -> usize {
        let (mut at, mut run) = (0, 0);
        while conn.ended.is_none() {
            let Some(size) = size_at(input, at) else { break };
            if !(1..=self.limits.max_answer as i64).contains(&size) {
                let most = self.limits.max_answer;
                let reason = format!(
                    "the broker sent a frame of {size} bytes: 1 to {most} are allowed; if that is an \
                     answer, raise TIDELINE_GATEWAY_MAX_ANSWER_BYTES to what it needs"
                );
                self.write(conn, &input[run..at]);
                self.broker_lost(conn, Cause::Answer, &reason, false);
                return at;
            }
            let size = size as usize;
            if input.len() - at - 4 < size {
                break;
            }
            let (here, next) = (at, at + 4 + size);
            let frame = &input[here + 4..next];
            let Some(owed) = due(conn, frame) else {
                self.write(conn, &input[run..here]);
                let reason = "the broker sent an answer that is not due";
                self.broker_lost(conn, Cause::Broker, reason, true);
                return at;
            };
            at = next;
            match owed {
                Owed::Slot { number, api_key, version } => {
                    let passes = !self.table.looks(api_key) && answer_passes(frame, api_key, version);
                    if passes && number == conn.first {
                        conn.pop_slot();
                        if conn.front_is_filled() {
                            self.write(conn, &input[run..next]);
                            run = next;
                            self.write_filled(conn);
                        }
                        continue;
                    }
                    if passes {
                        conn.store(number, Some(frame.to_vec()));
                    } else {
                        let aux = (api_key as u32) << 16 | u32::from(version as u16);
                        // With its client's id, before which stands its length, as in a request.
                        let mut told = conn.client_id.clone();
                        told.extend_from_slice(frame);
                        self.told.tell_owned(kind::SLOT_ANSWER, aux, conn.id, number, told, 0);
                    }
                }
                Owed::Token { token, .. } => {
                    self.told.tell(kind::ANSWER, 0, conn.id, token, frame);
                }
            }
            self.write(conn, &input[run..here]);
            run = next;
        }
        self.write(conn, &input[run..at]);
        at
    }

    fn write(&mut self, conn: &mut Conn, frames: &[u8]) {
        if !frames.is_empty() && conn.ended.is_none() && conn.client.write(frames).is_err() {
            self.client_left(conn);
        }
    }

    /// Write the answers that are there at the front of the order: small ones at once.
    fn write_filled(&mut self, conn: &mut Conn) {
        let mut frames = Vec::new();
        while conn.ended.is_none() && conn.front_is_filled() {
            let Some(Some(answer)) = conn.pop_slot().and_then(|slot| slot.answer) else { continue };
            let size = (answer.len() as u32).to_be_bytes();
            if answer.len() < crate::connection::SMALL {
                frames.extend_from_slice(&size);
                frames.extend_from_slice(&answer);
                continue;
            }
            self.write(conn, &frames);
            frames.clear();
            if conn.ended.is_none() && conn.client.write_owned(&size, answer, 0).is_err() {
                self.client_left(conn);
            }
        }
        self.write(conn, &frames);
    }

    // -- what Python asks for, of one connection

    pub fn begun(&mut self, conn: &mut Conn) {
        conn.begun = true;
        conn.long_first = true;
        let comes = !std::mem::replace(&mut conn.let_in, true);
        self.resume(conn);
        if comes && conn.left && !conn.begun && conn.ended.is_none() {
            self.note_left(conn);
        }
    }

    /// `number` of the dial that it was asked for by; whether it is still waited for.
    pub fn joined(&mut self, conn: &mut Conn, number: u64, stream: Stream) -> bool {
        if conn.dial != number {
            return false;
        }
        let Some(up) = conn.up.as_mut().filter(|up| up.stream.is_none()) else { return false };
        up.stream = Some(stream);
        if let Err(error) = up.flush() {
            self.broker_lost(conn, Cause::Broker, &error.to_string(), false);
        }
        self.resume(conn);
        true
    }

    pub fn not_joined(&mut self, conn: &mut Conn, number: u64, reason: &str) {
        if conn.dial == number && conn.up.as_ref().is_some_and(|up| up.stream.is_none()) {
            self.broker_lost(conn, Cause::Broker, reason, false);
        }
    }

    /// `token` 0: the broker does not answer it. Whether it was sent: of one that is to be sent
    /// `if_joined` alone it may not be.
    pub fn forward(
        &mut self,
        conn: &mut Conn,
        token: u64,
        own: bool,
        if_joined: bool,
        frame: Vec<u8>,
    ) -> bool {
        let cannot = conn.ended.is_some() || conn.lost || if_joined && conn.up.is_none();
        if cannot || frame.len() < 8 {
            return false;
        }
        if token == 0 {
            conn.sent_without_answer += 1;
        } else {
            conn.expected.push_back(Expected {
                correlation: i32::from_be_bytes([frame[4], frame[5], frame[6], frame[7]]),
                owed: Owed::Token { token, own },
                without_answer: conn.sent_without_answer,
            });
        }
        self.send_owned(conn, &(frame.len() as u32).to_be_bytes(), frame);
        true
    }

    pub fn fill(&mut self, conn: &mut Conn, number: u64, answer: Option<Vec<u8>>) {
        if conn.ended.is_none() && conn.store(number, answer) {
            self.write_filled(conn);
            self.note(conn);
            self.resume(conn);
        }
    }

    /// A session of Kafka's of which Python knows the topics; `None`: it knows no such session.
    pub fn session(&mut self, conn: &mut Conn, session: i32, topics: Option<Topics>) {
        if conn.ended.is_some() {
            return;
        }
        match topics {
            Some(topics) => {
                conn.sessions.insert(session, Session::new(topics));
            }
            None => {
                conn.sessions.remove(&session);
            }
        }
    }

    pub fn mute(&mut self, conn: &mut Conn, muted: bool) {
        if !muted && conn.muted.is_some() {
            conn.last_active = Instant::now();
            conn.last_read = conn.last_active;
        }
        conn.muted = muted.then(|| conn.muted.unwrap_or_else(Instant::now));
        self.resume(conn);
    }

    pub fn drain(&mut self, conn: &mut Conn) {
        conn.draining = true;
        conn.muted = None;
        self.resume(conn);
    }

    // -- time

    pub fn sweep_ms(&self) -> i32 {
        self.limits.sweep.as_millis() as i32
    }

    pub fn sweep(&mut self) {
        let now = Instant::now();
        if now - self.swept < self.limits.sweep {
            return;
        }
        self.swept = now;
        for index in 0..self.entries.len() {
            self.with(self.id_at(index), |engine, conn| engine.bound(conn, now));
        }
        self.tell_held = true;
    }

    fn bound(&mut self, conn: &mut Conn, now: Instant) {
        let limits = self.limits;
        let passed = |since: Instant, most: Duration| now.saturating_duration_since(since) > most;
        if let Some(ended) = conn.ended {
            if passed(ended, limits.grace) {
                conn.client = Side::new(None);
            }
            if passed(ended, limits.grace.max(limits.stall)) {
                conn.up = None;
            }
            return;
        }
        if conn.client.is_late(now) {
            return self.cut_off(conn, Cause::Bound, "its TLS handshake did not end in time");
        }
        if conn.up.as_ref().is_some_and(|up| up.is_late(now)) {
            let reason = "its TLS handshake did not end in time";
            return self.broker_lost(conn, Cause::Broker, reason, true);
        }
        let large = if self.full { conn.large_since } else { conn.last_read };
        let broker_stalls = conn.reads.1
            && conn.up.as_ref().is_some_and(|up| up.large_half().is_some())
            && passed(conn.last_answer, limits.half);
        if conn.stalled.is_some_and(|since| passed(since, limits.stall)) {
            let reason = format!("it took no answers for {} s", limits.stall.as_secs());
            self.cut_off(conn, Cause::Bound, &reason);
        } else if conn.reads.0 && conn.client.large_half().is_some() && passed(large, limits.half) {
            let reason = "it sent a part of a request and not the rest";
            self.end(conn, Cause::Bound, reason, Leave::Flush);
        } else if broker_stalls {
            let reason = "the broker sent a part of an answer and then nothing";
            self.cut_off(conn, Cause::Bound, reason);
        } else if conn.is_idle() && passed(conn.last_active, limits.idle) {
            let reason = format!("idle for {} s", limits.idle.as_secs());
            self.end(conn, Cause::Bound, &reason, Leave::Flush);
        } else if conn.muted.is_some_and(|since| passed(since, limits.muted)) && has_sent(conn) {
            let reason = "it is above its quota for longer than what it sent is held";
            self.end(conn, Cause::Bound, reason, Leave::Flush);
        }
    }
}

/// What an answer that has come is due to.
fn due(conn: &mut Conn, frame: &[u8]) -> Option<Owed> {
    let correlation = i32::from_be_bytes(frame.get(..4)?.try_into().ok()?);
    if conn.expected.front()?.correlation != correlation {
        return None;
    }
    let expected = conn.expected.pop_front()?;
    conn.served_without_answer = expected.without_answer;
    Some(expected.owed)
}

/// Whether a client that is not read has sent something, or has left.
fn has_sent(conn: &Conn) -> bool {
    !conn.client.input.is_empty()
        || conn.client.stream.as_ref().is_some_and(|stream| stream.fd().has_something())
}

enum Got {
    Nothing,
    Ended,
    /// In what encrypts it.
    Failed(String),
    /// So many, in the buffer that all share.
    Bytes(usize),
}

/// Read once; where there is no room nothing behind a large frame that is half read.
fn receive(side: &mut Side, scratch: &mut [u8], full: bool) -> Got {
    let most = match side.large_half() {
        Some(size) if full => (size + 4 - side.input.len()).min(scratch.len()),
        _ => scratch.len(),
    };
    let Some(stream) = &mut side.stream else { return Got::Nothing };
    match stream.read(scratch, most) {
        Ok(0) => Got::Ended,
        Ok(size) => Got::Bytes(size),
        Err(error) if would_block(&error) => Got::Nothing,
        Err(error) if error.raw_os_error().is_none() => Got::Failed(error.to_string()),
        Err(_) => Got::Ended,
    }
}

/// The topics in `raw`: names behind their lengths in two bytes of this machine's order, and ids.
pub fn topics(names: &[u8], ids: &[u8]) -> Topics {
    let mut found = Topics { names: HashSet::new(), ids: HashSet::new() };
    let mut left = names;
    while let [first, second, rest @ ..] = left {
        let size = usize::from(u16::from_ne_bytes([*first, *second])).min(rest.len());
        found.names.insert(rest[..size].into());
        left = &rest[size..];
    }
    for id in ids.chunks_exact(16) {
        found.ids.extend(<[u8; 16]>::try_from(id));
    }
    found
}
