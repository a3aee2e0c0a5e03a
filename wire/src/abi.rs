//! The border to C: what Python calls. Pointers are the caller's; nothing of it is kept.

use crate::engine::{Engine, Limits, Rule, Table, Treatment, APIS, STOP};
use crate::sys::{Epoll, Event, Fd, Wake};
use crate::walks;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

const EVENTS: usize = 64;
const GONE: i32 = -1;

pub struct Wire {
    engine: Arc<Mutex<Engine>>,
    epoll: Arc<Epoll>,
    stop: Wake,
    thread: Option<JoinHandle<()>>,
}

fn lock(engine: &Mutex<Engine>) -> MutexGuard<'_, Engine> {
    engine.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Deal with what is ready. Returns whether it goes on.
fn turn(engine: &Mutex<Engine>, epoll: &Epoll, timeout_ms: i32, signal: bool) -> bool {
    let mut events = [Event { events: 0, data: 0 }; EVENTS];
    let count = epoll.wait(&mut events, timeout_ms);
    for event in &events[..count] {
        if event.data == STOP {
            return false;
        }
        let mut held = lock(engine);
        let id = event.data >> 1;
        if catch_unwind(AssertUnwindSafe(|| held.event(event))).is_err() {
            held.lost(id);
        }
        if signal {
            held.signal();
        }
    }
    let mut held = lock(engine);
    held.sweep();
    if signal {
        held.signal();
    }
    true
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

#[no_mangle]
pub extern "C" fn wire_new(max_frame: u64, max_answer: u64, in_flight: u64) -> *mut Wire {
    let limits = Limits { max_frame, max_answer, in_flight };
    let made = || -> std::io::Result<Wire> {
        let epoll = Arc::new(Epoll::new()?);
        let stop = Wake::new()?;
        epoll.add(stop.fd(), crate::sys::EPOLLIN, STOP)?;
        let engine = Arc::new(Mutex::new(Engine::new(limits, Arc::clone(&epoll))?));
        Ok(Wire { engine, epoll, stop, thread: None })
    };
    made().map_or(std::ptr::null_mut(), |wire| Box::into_raw(Box::new(wire)))
}

/// # Safety
/// Of every call below: `wire` is what `wire_new` gave, and not freed.
#[no_mangle]
pub unsafe extern "C" fn wire_start(wire: *mut Wire) {
    let wire = &mut *wire;
    let (engine, epoll) = (Arc::clone(&wire.engine), Arc::clone(&wire.epoll));
    let run = move || while turn(&engine, &epoll, 1_000, true) {};
    wire.thread = std::thread::Builder::new().name("wire".into()).spawn(run).ok();
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
    lock(&(*wire).engine).wake.fd().raw()
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn wire_poll_fd(wire: *mut Wire) -> i32 {
    (*wire).epoll.raw()
}

/// # Safety
/// See above. Without `wire_start` alone.
#[no_mangle]
pub unsafe extern "C" fn wire_turn(wire: *mut Wire) {
    let wire = &*wire;
    turn(&wire.engine, &wire.epoll, 0, false);
}

/// # Safety
/// See above. `address`: a `sockaddr` of so many bytes, at least two. The descriptor is given away.
#[no_mangle]
pub unsafe extern "C" fn wire_adopt(wire: *mut Wire, fd: i32, address: *const u8, size: usize) -> u64 {
    let address = bytes(address, size).to_vec();
    lock(&(*wire).engine).adopt(Fd::of(fd), address)
}

/// # Safety
/// See above. `rules`: (treatment, lowest, highest) for each of 128 APIs; `names`: each behind its
/// length in two bytes of this machine's order; `ids`: 16 bytes each.
#[no_mangle]
pub unsafe extern "C" fn wire_table(
    wire: *mut Wire,
    rules: *const i16,
    names: *const u8,
    names_size: usize,
    ids: *const u8,
    ids_size: usize,
) {
    let mut table = Table::closed();
    for (number, told) in slice::from_raw_parts(rules, APIS * 3).chunks_exact(3).enumerate() {
        let treatment = match told[0] {
            1 => Treatment::Pass,
            2 => Treatment::PassByTopics,
            _ => Treatment::Python,
        };
        table.rules[number] = Rule { treatment, lowest: told[1], highest: told[2] };
    }
    let mut left = bytes(names, names_size);
    while let [first, second, rest @ ..] = left {
        let size = usize::from(u16::from_ne_bytes([*first, *second])).min(rest.len());
        table.names.insert(rest[..size].into());
        left = &rest[size..];
    }
    for id in bytes(ids, ids_size).chunks_exact(16) {
        table.ids.extend(<[u8; 16]>::try_from(id));
    }
    let before = std::mem::replace(&mut lock(&(*wire).engine).table, table);
    drop(before); // which takes a while, without the lock
}

/// # Safety
/// See above. What `found` points to afterwards stays until the next call.
#[no_mangle]
pub unsafe extern "C" fn wire_take(wire: *mut Wire, found: *mut *const u8) -> usize {
    let mut engine = lock(&(*wire).engine);
    let taken = engine.take();
    *found = taken.as_ptr();
    taken.len()
}

/// A call about one connection, which may be gone.
unsafe fn about(
    wire: *mut Wire,
    id: u64,
    step: impl FnOnce(&mut Engine, &mut crate::connection::Conn),
) -> i32 {
    let mut engine = lock(&(*wire).engine);
    let made = catch_unwind(AssertUnwindSafe(|| engine.with(id, step)));
    let made = match made {
        Ok(Some(())) => 0,
        Ok(None) => GONE,
        Err(_) => {
            engine.lost(id);
            GONE
        }
    };
    engine.signal();
    made
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn wire_begun(wire: *mut Wire, id: u64) -> i32 {
    about(wire, id, |engine, conn| engine.begun(conn))
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn wire_forward(
    wire: *mut Wire,
    id: u64,
    token: u64,
    frame: *const u8,
    size: usize,
) -> i32 {
    let frame = bytes(frame, size);
    about(wire, id, |engine, conn| engine.forward(conn, token, frame))
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
    let answer = (!answer.is_null()).then(|| bytes(answer, size));
    about(wire, id, |engine, conn| engine.fill(conn, slot, answer))
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn wire_barrier(wire: *mut Wire, id: u64, token: u64) -> i32 {
    about(wire, id, |engine, conn| engine.barrier(conn, token))
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn wire_mute(wire: *mut Wire, id: u64, muted: i32) -> i32 {
    about(wire, id, |engine, conn| engine.mute(conn, muted != 0))
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn wire_close(wire: *mut Wire, id: u64, cut_off: i32) -> i32 {
    about(wire, id, |engine, conn| engine.end(conn, "the gateway closed it", cut_off != 0))
}

/// # Safety
/// See above. `counts`: of 128 APIs, the requests that passed.
#[no_mangle]
pub unsafe extern "C" fn wire_counters(wire: *mut Wire, counts: *mut u64) {
    let engine = lock(&(*wire).engine);
    slice::from_raw_parts_mut(counts, APIS).copy_from_slice(&engine.passed);
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
