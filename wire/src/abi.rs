//! The border to C: what Python calls. Pointers are the caller's; nothing of it is kept.

use crate::connection::{Conn, Leave};
use crate::engine::{topics, Cause, Engine, Limits, BOUNDS, BROKERS, CLIENTS, LIMITS, STOP};
use crate::stream::Stream;
use crate::sys::{Epoll, Event, Fd, Wake, EPOLLIN};
use crate::table::{Change, Rule, Treatment, Way, APIS};
use crate::{look, records, tls, walks};
use std::ffi::CStr;
use std::io::{Error, Result};
use std::os::raw::c_char;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::process::abort;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{yield_now, JoinHandle};
use std::time::Duration;

/// Of the border: the calls here, their structures (`Limits`, `tls::Rules`) and the messages of `told`.
/// Whoever changes one of them counts it on, here and in `tideline/kafka/wire.py`.
const ABI: u32 = 3;
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
const EVENTS: usize = 64;
/// Of [`wire_records`].
const RECORDS_ASKED: usize = 6;
const RECORDS_TOLD: usize = 4 + 2 * records::NAMED;
const GONE: i32 = -1;
/// It was not done.
const NOT: i32 = 1;
/// How often the thread lets Python go first.
const YIELDS: u32 = 64;

struct Shared {
    engine: Mutex<Engine>,
    epoll: Arc<Epoll>,
    /// Calls of Python that wait for the engine.
    waiting: AtomicUsize,
}

pub struct Wire {
    shared: Arc<Shared>,
    stop: Wake,
    thread: Option<JoinHandle<()>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// One step, and what is due after it. `None`: it has failed.
    fn step<T>(&self, work: impl FnOnce(&mut Engine) -> T) -> Option<T> {
        let mut engine = self.lock();
        let done = catch_unwind(AssertUnwindSafe(|| {
            let made = work(&mut engine);
            engine.settled();
            made
        }));
        if done.is_err() {
            if catch_unwind(AssertUnwindSafe(|| engine.recover())).is_err() {
                // Clients would wait for ever: a process that ends is started anew.
                abort();
            }
            let _ = catch_unwind(AssertUnwindSafe(|| engine.settled()));
        }
        done.ok()
    }

    /// A step that Python asks for, before which the thread steps back.
    fn asked<T>(&self, work: impl FnOnce(&mut Engine) -> T) -> Option<T> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.step(|engine| {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            work(engine)
        })
    }

    /// Deal with what is ready. Returns whether it goes on.
    fn turn(&self, timeout_ms: i32) -> bool {
        let mut events = [Event { events: 0, data: 0 }; EVENTS];
        let count = self.epoll.wait(&mut events, timeout_ms);
        for event in &events[..count] {
            if event.data == STOP {
                return false;
            }
            for _ in 0..YIELDS {
                if self.waiting.load(Ordering::Relaxed) == 0 {
                    break;
                }
                yield_now();
            }
            self.step(|engine| engine.event(event));
        }
        self.step(Engine::sweep);
        true
    }
}

/// # Safety
/// `data` is as long as is said, or null with length 0.
unsafe fn bytes<'a>(data: *const u8, size: usize) -> &'a [u8] {
    if data.is_null() {
        &[]
    } else {
        slice::from_raw_parts(data, size)
    }
}

/// The number of the border, which stays as it is in every version.
#[no_mangle]
pub extern "C" fn wire_abi() -> u32 {
    ABI
}

/// The crate's version, with a zero behind it, which stays; so does this call.
#[no_mangle]
pub extern "C" fn wire_version() -> *const c_char {
    VERSION.as_ptr().cast()
}

/// # Safety
/// `limits` has [`LIMITS`] numbers.
#[no_mangle]
pub unsafe extern "C" fn wire_new(limits: *const u64) -> *mut Wire {
    let mut told = [0; LIMITS];
    told.copy_from_slice(slice::from_raw_parts(limits, LIMITS));
    let made = || -> std::io::Result<Wire> {
        let epoll = Arc::new(Epoll::new()?);
        let stop = Wake::new()?;
        epoll.add(stop.fd(), EPOLLIN, STOP)?;
        let engine = Mutex::new(Engine::new(Limits::of(&told), Arc::clone(&epoll))?);
        let shared = Arc::new(Shared { engine, epoll, waiting: AtomicUsize::new(0) });
        Ok(Wire { shared, stop, thread: None })
    };
    made().map_or(std::ptr::null_mut(), |wire| Box::into_raw(Box::new(wire)))
}

/// Begin the thread that runs it. 0, or that there is none.
///
/// # Safety
/// Of every call below: `wire` is what `wire_new` gave, and not freed.
#[no_mangle]
pub unsafe extern "C" fn wire_start(wire: *mut Wire) -> i32 {
    let wire = &mut *wire;
    let shared = Arc::clone(&wire.shared);
    let sweep_ms = shared.lock().sweep_ms();
    let run = move || while shared.turn(sweep_ms) {};
    wire.thread = std::thread::Builder::new().name("wire".into()).spawn(run).ok();
    if wire.thread.is_some() {
        0
    } else {
        NOT
    }
}

/// # Safety
/// See above. `wire` is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn wire_free(wire: *mut Wire) {
    let mut wire = Box::from_raw(wire);
    wire.stop.signal();
    if let Some(thread) = wire.thread.take() {
        let _ = thread.join();
    }
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn wire_wake_fd(wire: *mut Wire) -> i32 {
    (*wire).shared.lock().wake.fd().raw()
}

/// # Safety
/// See above. The descriptor is given away. `handshake_ms`: how long the client may shake hands; 0: it
/// is plain. 0: it cannot be encrypted, and is closed.
#[no_mangle]
pub unsafe extern "C" fn wire_adopt(wire: *mut Wire, fd: i32, handshake_ms: u64) -> u64 {
    let encrypted = (handshake_ms > 0).then_some((CLIENTS, None, handshake_ms));
    let Ok(client) = stream(&*wire, Fd::of(fd), encrypted) else { return 0 };
    (*wire).shared.asked(|engine| engine.adopt(client)).unwrap_or(0)
}

/// A connection, and by what it is encrypted: whom it is with, the name that those have to have, and
/// within how many ms.
fn stream(wire: &Wire, fd: Fd, encrypted: Option<(usize, Option<&str>, u64)>) -> Result<Stream> {
    let Some((whose, name, handshake_ms)) = encrypted else { return Ok(Stream::Plain(fd)) };
    let context = wire.shared.asked(|engine| engine.contexts[whose].clone()).flatten();
    let context = context.ok_or_else(|| Error::other("nothing says how it is encrypted"))?;
    Stream::encrypted(fd, &context, name, Duration::from_millis(handshake_ms))
}

/// Find OpenSSL; see `tls::find`. 0, or -1 and why not.
///
/// # Safety
/// `path` ends with a zero; `why` has room for `room` bytes.
#[no_mangle]
pub unsafe extern "C" fn wire_openssl(
    path: *const c_char,
    version: u64,
    why: *mut u8,
    room: usize,
) -> i32 {
    explained(tls::find(CStr::from_ptr(path), version), why, room)
}

/// From now on the connections with clients (`whose` 0), or with brokers (1), are encrypted so; those
/// that are there stay as they are. 0, or -1 and why not: then it stays as it was.
///
/// # Safety
/// See above, and `tls::Rules`.
#[no_mangle]
pub unsafe extern "C" fn wire_encrypt(
    wire: *mut Wire,
    whose: u32,
    rules: *const tls::Rules,
    why: *mut u8,
    room: usize,
) -> i32 {
    let made = tls::Context::new(&*rules).map(Arc::new).map_err(|error| error.to_string());
    let made = made.and_then(|context| {
        let set = |engine: &mut Engine| {
            let place = engine.contexts.get_mut(whose as usize)?;
            Some(place.replace(context))
        };
        let before = (*wire).shared.asked(set).flatten().ok_or("there is no such side")?;
        drop(before);
        Ok(())
    });
    explained(made, why, room)
}

/// # Safety
/// `why` has room for `room` bytes, of which the last is for a zero.
unsafe fn explained(made: std::result::Result<(), String>, why: *mut u8, room: usize) -> i32 {
    let Err(reason) = made else { return 0 };
    if room > 0 {
        let size = reason.len().min(room - 1);
        std::ptr::copy_nonoverlapping(reason.as_ptr(), why, size);
        *why.add(size) = 0;
    }
    GONE
}

/// # Safety
/// See above. `names`, and `left` alike: each behind its length in two bytes of this machine's
/// order; ids: 16 bytes each. `rules`: (treatment, lowest, highest, whether answers are looked
/// into) for each of 128 APIs.
#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn wire_table(
    wire: *mut Wire,
    rules: *const i16,
    names: *const u8,
    names_size: usize,
    ids: *const u8,
    ids_size: usize,
    left_names: *const u8,
    left_names_size: usize,
    left_ids: *const u8,
    left_ids_size: usize,
) {
    let closed = Rule { treatment: Treatment::Python, lowest: 0, highest: -1, looks: true };
    let mut made = [closed; APIS];
    for (number, told) in slice::from_raw_parts(rules, APIS * 4).chunks_exact(4).enumerate() {
        let treatment = match told[0] {
            1 => Treatment::Pass,
            2 => Treatment::PassByTopics,
            _ => Treatment::Python,
        };
        made[number] = Rule { treatment, lowest: told[1], highest: told[2], looks: told[3] != 0 };
    }
    let change = Change {
        rules: made,
        joined: topics(bytes(names, names_size), bytes(ids, ids_size)),
        left: topics(bytes(left_names, left_names_size), bytes(left_ids, left_ids_size)),
    };
    (*wire).shared.asked(|engine| engine.table.change(change));
}

/// # Safety
/// See above. What `found` points to afterwards stays until `wire_read`.
#[no_mangle]
pub unsafe extern "C" fn wire_take(wire: *mut Wire, found: *mut *const u8) -> usize {
    let taken = (*wire).shared.asked(|engine| {
        let taken = engine.take();
        (taken.as_ptr(), taken.len())
    });
    let (start, size) = taken.unwrap_or((std::ptr::null(), 0));
    *found = start;
    size
}

/// # Safety
/// See above. What was taken is not read any more.
#[no_mangle]
pub unsafe extern "C" fn wire_read(wire: *mut Wire) {
    (*wire).shared.asked(Engine::read);
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn wire_room(wire: *mut Wire, full: i32, allowance: u64) {
    (*wire).shared.asked(|engine| engine.room(full != 0, allowance));
}

/// A call about one connection, which may be gone.
unsafe fn about(wire: *mut Wire, id: u64, step: impl FnOnce(&mut Engine, &mut Conn) -> bool) -> i32 {
    match (*wire).shared.asked(|engine| engine.with(id, step)) {
        Some(Some(true)) => 0,
        Some(Some(false)) => NOT,
        _ => GONE,
    }
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn wire_begun(wire: *mut Wire, id: u64) -> i32 {
    about(wire, id, |engine, conn| {
        engine.begun(conn);
        true
    })
}

/// It has shown itself.
///
/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn wire_shown(wire: *mut Wire, id: u64) -> i32 {
    about(wire, id, |_, conn| {
        (conn.young, conn.hidden) = (false, false);
        true
    })
}

/// What it sends is Python's until it is shown again.
///
/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn wire_hide(wire: *mut Wire, id: u64) -> i32 {
    about(wire, id, |_, conn| {
        conn.hidden = true;
        true
    })
}

/// Its client ends with its connection to the broker.
///
/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn wire_bind(wire: *mut Wire, id: u64) -> i32 {
    about(wire, id, |_, conn| {
        conn.bound = true;
        true
    })
}

/// # Safety
/// See above. The descriptor of the broker's connection is given away; 1: it is not waited for.
/// `name`: what its certificate has to be for, and within how long it has to have shaken hands; null:
/// it is plain.
#[no_mangle]
pub unsafe extern "C" fn wire_joined(
    wire: *mut Wire,
    id: u64,
    number: u64,
    fd: i32,
    name: *const c_char,
    handshake_ms: u64,
) -> i32 {
    let name = (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy());
    let encrypted = name.as_deref().map(|name| (BROKERS, Some(name), handshake_ms));
    let made = stream(&*wire, Fd::of(fd), encrypted);
    about(wire, id, |engine, conn| match made {
        Ok(stream) => engine.joined(conn, number, stream),
        Err(error) => {
            engine.not_joined(conn, number, &error.to_string());
            false
        }
    })
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn wire_not_joined(
    wire: *mut Wire,
    id: u64,
    number: u64,
    reason: *const u8,
    size: usize,
) -> i32 {
    let reason = String::from_utf8_lossy(bytes(reason, size));
    about(wire, id, |engine, conn| {
        engine.not_joined(conn, number, &reason);
        true
    })
}

/// # Safety
/// See above. `how`: 1: nobody but the gateway itself waits for its answer; 2: only if there is a
/// connection to the broker. 1: it was not sent.
#[no_mangle]
pub unsafe extern "C" fn wire_forward(
    wire: *mut Wire,
    id: u64,
    token: u64,
    how: u32,
    frame: *const u8,
    size: usize,
) -> i32 {
    let frame = bytes(frame, size).to_vec();
    about(wire, id, |engine, conn| engine.forward(conn, token, how & 1 != 0, how & 2 != 0, frame))
}

/// # Safety
/// See above. `answer` is null if there is none.
#[no_mangle]
pub unsafe extern "C" fn wire_fill(
    wire: *mut Wire,
    id: u64,
    slot: u64,
    answer: *const u8,
    size: usize,
) -> i32 {
    let answer = (!answer.is_null()).then(|| bytes(answer, size).to_vec());
    about(wire, id, |engine, conn| {
        engine.fill(conn, slot, answer);
        true
    })
}

/// # Safety
/// See above. Topics as of `wire_table`. `known` 0: there is no such session.
#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn wire_session(
    wire: *mut Wire,
    id: u64,
    session: i32,
    known: i32,
    names: *const u8,
    names_size: usize,
    ids: *const u8,
    ids_size: usize,
) -> i32 {
    let found = (known != 0).then(|| topics(bytes(names, names_size), bytes(ids, ids_size)));
    about(wire, id, |engine, conn| {
        engine.session(conn, session, found);
        true
    })
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn wire_mute(wire: *mut Wire, id: u64, muted: i32) -> i32 {
    about(wire, id, |engine, conn| {
        engine.mute(conn, muted != 0);
        true
    })
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn wire_drain(wire: *mut Wire, id: u64) -> i32 {
    about(wire, id, |engine, conn| {
        engine.drain(conn);
        true
    })
}

/// 0: nothing is owed to its client.
///
/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn wire_idle(wire: *mut Wire, id: u64) -> i32 {
    about(wire, id, |_, conn| conn.is_idle())
}

/// 0: it has a connection to the broker, or one is being opened.
///
/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn wire_is_joined(wire: *mut Wire, id: u64) -> i32 {
    about(wire, id, |_, conn| conn.up.is_some())
}

/// # Safety
/// See above. `how`: 0: what is written is still sent; 1: cut off; 2: handed over.
#[no_mangle]
pub unsafe extern "C" fn wire_close(wire: *mut Wire, id: u64, how: i32) -> i32 {
    about(wire, id, |engine, conn| {
        match how {
            1 => engine.cut_off(conn, Cause::Python, ""),
            2 => engine.end(conn, Cause::Python, "", Leave::HandOver),
            _ => engine.end(conn, Cause::Python, "", Leave::Flush),
        }
        true
    })
}

/// # Safety
/// See above. `counts`: of 128 APIs, the requests that passed; and how often each bound held
/// somebody back.
#[no_mangle]
pub unsafe extern "C" fn wire_counters(wire: *mut Wire, counts: *mut u64) {
    let engine = (*wire).shared.lock();
    let counts = slice::from_raw_parts_mut(counts, APIS + BOUNDS);
    counts[..APIS].copy_from_slice(&engine.passed);
    counts[APIS..].copy_from_slice(&engine.bounds);
}

/// What would become of a request now: 0 Python's, 1 it passes, 2 the same and the broker does not
/// answer it.
///
/// # Safety
/// See above. `frame` is as long as is said.
#[no_mangle]
pub unsafe extern "C" fn wire_way(wire: *mut Wire, id: u64, frame: *const u8, size: usize) -> i32 {
    let frame = bytes(frame, size);
    let step = |engine: &mut Engine, conn: &mut Conn| match engine.table.way(
        frame,
        &mut conn.sessions,
        conn.produces,
    ) {
        Way::Python { .. } => 0,
        Way::Pass(_) => 1,
        Way::PassUnanswered => 2,
    };
    (*wire).shared.asked(|engine| engine.with(id, step)).flatten().unwrap_or(GONE)
}

/// What the walk says of a request: 0 and its session, and the topics in `keys` (each a kind, two
/// bytes of length in this machine's order, and itself); -1: nothing; -2: its header is malformed.
///
/// # Safety
/// `keys` has room for `room` bytes, `told` for (bytes of keys, session, epoch, acks, where a Fetch
/// says how much it wants).
#[no_mangle]
pub unsafe extern "C" fn wire_walk(
    frame: *const u8,
    size: usize,
    keys: *mut u8,
    room: usize,
    told: *mut i64,
) -> i32 {
    let frame = bytes(frame, size);
    let told = slice::from_raw_parts_mut(told, 5);
    let Some(header) = walks::header(frame) else { return -2 };
    told[3] = walks::produce_acks(frame, &header).map_or(i64::MIN, i64::from);
    told[4] = walks::fetch_most_at(frame, &header).map_or(-1, |at| at as i64);
    let mut found = Vec::new();
    let walked = walks::named_topics(frame, &header, &mut |key| {
        let (kind, raw): (u8, &[u8]) = match key {
            walks::Key::Name(name) => (0, name),
            walks::Key::Id(id) => (1, id),
            walks::Key::Nothing => (2, &[]),
        };
        found.push(kind);
        found.extend_from_slice(&(raw.len() as u16).to_ne_bytes());
        found.extend_from_slice(raw);
    });
    let Some(session) = walked else { return -1 };
    if found.len() > room {
        return -3;
    }
    slice::from_raw_parts_mut(keys, found.len()).copy_from_slice(&found);
    told[0] = found.len() as i64;
    told[1] = i64::from(session.id);
    told[2] = i64::from(session.epoch);
    0
}

/// Whether an answer goes to its client as it came.
///
/// # Safety
/// `frame` is as long as is said.
#[no_mangle]
pub unsafe extern "C" fn wire_answer(frame: *const u8, size: usize, api_key: i16, version: i16) -> i32 {
    i32::from(walks::answer_passes(bytes(frame, size), api_key, version))
}

/// How many rows of [`look::COLUMNS`] numbers a Produce has, one for each batch: see `look::request`,
/// whose `at` is where the request's header ends. -1: Python has to look.
///
/// # Safety
/// `frame` is as long as is said; `rows` has room for so many.
#[no_mangle]
pub unsafe extern "C" fn wire_look(
    frame: *const u8,
    size: usize,
    at: i64,
    version: i16,
    most: i64,
    rows: *mut i64,
    room: usize,
) -> i64 {
    let frame = bytes(frame, size);
    let rows = slice::from_raw_parts_mut(rows.cast::<look::Row>(), room);
    let looked = || look::request(frame, at, version, most, rows);
    let found = catch_unwind(AssertUnwindSafe(looked)).ok().flatten();
    found.map_or(-1, |count| count as i64)
}

/// Reads the records of one batch, unpacked: see `records::read`. `asked` has [`RECORDS_ASKED`] numbers, in
/// the order of `records::Asked`. 0: they are right, and `told` has earliest, latest, headers, how many are
/// out of range, and of each of these number and timestamp. More: the fault, and `told` has the record's
/// number and the number that is wrong. -1: a defect.
///
/// # Safety
/// `body` is as long as is said; `told` has room for [`RECORDS_TOLD`] numbers.
#[no_mangle]
pub unsafe extern "C" fn wire_records(
    body: *const u8,
    size: usize,
    asked: *const i64,
    told: *mut i64,
) -> i32 {
    let body = bytes(body, size);
    let told = slice::from_raw_parts_mut(told, RECORDS_TOLD);
    let mut numbers = [0; RECORDS_ASKED];
    numbers.copy_from_slice(slice::from_raw_parts(asked, RECORDS_ASKED));
    let [count, from, base_timestamp, earliest, latest, most_headers] = numbers;
    let asked = records::Asked { count, from, base_timestamp, earliest, latest, most_headers };
    match catch_unwind(|| records::read(body, &asked)) {
        Err(_) => -1,
        Ok(Err(wrong)) => {
            told[..2].copy_from_slice(&[wrong.record, wrong.value]);
            wrong.fault as i32
        }
        Ok(Ok(found)) => {
            let counts = [found.earliest, found.latest, found.headers, found.told as i64];
            told[..4].copy_from_slice(&counts);
            for (place, (number, timestamp)) in told[4..].chunks_exact_mut(2).zip(found.out_of_range) {
                place.copy_from_slice(&[number, timestamp]);
            }
            0
        }
    }
}
