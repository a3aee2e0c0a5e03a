//! The system calls that the standard library has no names for, and what only some processors do.

use std::io::{Error, ErrorKind, Result};
use std::os::raw::{c_int, c_void};

pub const EPOLLIN: u32 = 1;
pub const EPOLLOUT: u32 = 4;
pub const EPOLLERR: u32 = 8;
pub const EPOLLHUP: u32 = 0x10;
const EPOLL_CTL_ADD: c_int = 1;
const EPOLL_CTL_DEL: c_int = 2;
const EPOLL_CTL_MOD: c_int = 3;
const CLOEXEC: c_int = 0o2_000_000;
const NONBLOCK: c_int = 0o4_000;
const MSG_PEEK: c_int = 2;
const MSG_DONTWAIT: c_int = 0x40;
const MSG_NOSIGNAL: c_int = 0x4000;
const SHUT_WR: c_int = 1;
/// That go to the kernel in one call; what is behind them waits for the next.
const MOST_PARTS: usize = 16;

#[cfg_attr(target_arch = "x86_64", repr(C, packed))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C))]
#[derive(Clone, Copy)]
pub struct Event {
    pub events: u32,
    pub data: u64,
}

/// `struct iovec`
#[repr(C)]
#[derive(Clone, Copy)]
struct Part {
    start: *const c_void,
    size: usize,
}

/// `struct msghdr`
#[repr(C)]
struct Message {
    name: *const c_void,
    name_size: u32,
    parts: *const Part,
    count: usize,
    control: *const c_void,
    control_size: usize,
    flags: c_int,
}

extern "C" {
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut Event) -> c_int;
    fn epoll_wait(epoll: c_int, events: *mut Event, most: c_int, timeout_ms: c_int) -> c_int;
    fn eventfd(value: u32, flags: c_int) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn read(fd: c_int, buffer: *mut c_void, size: usize) -> isize;
    fn write(fd: c_int, buffer: *const c_void, size: usize) -> isize;
    fn recv(fd: c_int, buffer: *mut c_void, size: usize, flags: c_int) -> isize;
    fn sendmsg(fd: c_int, message: *const Message, flags: c_int) -> isize;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
}

fn checked(result: c_int) -> Result<c_int> {
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// A descriptor that is closed when it is dropped.
pub struct Fd(c_int);

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: nobody else closes it.
        unsafe { close(self.0) };
    }
}

impl Fd {
    /// The caller gives `fd` away.
    pub fn of(fd: c_int) -> Fd {
        Fd(fd)
    }
    pub fn raw(&self) -> c_int {
        self.0
    }
    /// Bytes read into `buffer`; 0 at the end.
    pub fn recv(&self, buffer: &mut [u8]) -> Result<usize> {
        // SAFETY: the buffer is as long as is said.
        let got = unsafe { recv(self.0, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        usize::try_from(got).map_err(|_| Error::last_os_error())
    }
    /// How many bytes of `parts`, one behind the other, the socket took.
    pub fn send(&self, parts: &[&[u8]]) -> Result<usize> {
        let empty = Part { start: std::ptr::null(), size: 0 };
        let mut told = [empty; MOST_PARTS];
        let count = parts.len().min(MOST_PARTS);
        for (part, place) in parts.iter().zip(told.iter_mut()) {
            *place = Part { start: part.as_ptr().cast(), size: part.len() };
        }
        let message = Message {
            name: std::ptr::null(),
            name_size: 0,
            parts: told.as_ptr(),
            count,
            control: std::ptr::null(),
            control_size: 0,
            flags: 0,
        };
        // SAFETY: the parts are as long as is said; a peer that is gone is an error, not a signal.
        let sent = unsafe { sendmsg(self.0, &raw const message, MSG_NOSIGNAL) };
        usize::try_from(sent).map_err(|_| Error::last_os_error())
    }
    /// End our side; the peer may still send.
    pub fn end_writing(&self) -> Result<()> {
        // SAFETY: no pointers.
        checked(unsafe { shutdown(self.0, SHUT_WR) }).map(|_| ())
    }
    /// Whether something can be read: bytes, the end, or an error. Nothing is.
    pub fn has_something(&self) -> bool {
        let mut byte = 0u8;
        // SAFETY: one byte.
        let got = unsafe { recv(self.0, (&raw mut byte).cast(), 1, MSG_PEEK | MSG_DONTWAIT) };
        got >= 0 || Error::last_os_error().kind() != ErrorKind::WouldBlock
    }
}

pub struct Epoll(Fd);

impl Epoll {
    pub fn new() -> Result<Epoll> {
        // SAFETY: no pointers.
        Ok(Epoll(Fd(checked(unsafe { epoll_create1(CLOEXEC) })?)))
    }
    pub fn raw(&self) -> c_int {
        self.0.raw()
    }
    fn control(&self, operation: c_int, fd: &Fd, events: u32, data: u64) -> Result<()> {
        let mut event = Event { events, data };
        // SAFETY: the event lives for the call.
        checked(unsafe { epoll_ctl(self.raw(), operation, fd.0, &raw mut event) }).map(|_| ())
    }
    pub fn add(&self, fd: &Fd, events: u32, data: u64) -> Result<()> {
        self.control(EPOLL_CTL_ADD, fd, events, data)
    }
    pub fn change(&self, fd: &Fd, events: u32, data: u64) -> Result<()> {
        self.control(EPOLL_CTL_MOD, fd, events, data)
    }
    pub fn remove(&self, fd: &Fd) {
        let _ = self.control(EPOLL_CTL_DEL, fd, 0, 0);
    }
    pub fn wait(&self, events: &mut [Event], timeout_ms: c_int) -> usize {
        // SAFETY: as many as there is place for.
        let found =
            unsafe { epoll_wait(self.raw(), events.as_mut_ptr(), events.len() as c_int, timeout_ms) };
        usize::try_from(found).unwrap_or(0) // interrupted
    }
}

/// Wakes who waits for it.
pub struct Wake(Fd);

impl Wake {
    pub fn new() -> Result<Wake> {
        // SAFETY: no pointers.
        Ok(Wake(Fd(checked(unsafe { eventfd(0, CLOEXEC | NONBLOCK) })?)))
    }
    pub fn fd(&self) -> &Fd {
        &self.0
    }
    pub fn signal(&self) {
        let one: u64 = 1;
        // SAFETY: eight bytes.
        unsafe { write(self.0.raw(), (&raw const one).cast(), 8) };
    }
    pub fn clear(&self) {
        let mut count: u64 = 0;
        // SAFETY: eight bytes.
        unsafe { read(self.0.raw(), (&raw mut count).cast(), 8) };
    }
}

/// CRC-32C of `data` behind that of what is before it, both without the inversions at the ends. `None`:
/// this processor does not do it.
#[cfg(target_arch = "x86_64")]
pub fn crc32c_by_processor(before: u32, data: &[u8]) -> Option<u32> {
    if !std::arch::is_x86_feature_detected!("sse4.2") {
        return None;
    }
    // SAFETY: the processor was asked.
    Some(unsafe { crc32c_by_sse42(before, data) })
}

#[cfg(not(target_arch = "x86_64"))]
pub fn crc32c_by_processor(_: u32, _: &[u8]) -> Option<u32> {
    None
}

/// # Safety
/// The processor has SSE 4.2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
#[allow(unused_unsafe)] // from Rust 1.87 on these are safe here
unsafe fn crc32c_by_sse42(before: u32, data: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u64, _mm_crc32_u8};
    let (eights, rest) = data.split_at(data.len() - data.len() % 8);
    let mut crc = u64::from(before);
    for eight in eights.chunks_exact(8) {
        let mut number = [0; 8];
        number.copy_from_slice(eight);
        // SAFETY: the processor has the instruction, and nothing points anywhere.
        crc = unsafe { _mm_crc32_u64(crc, u64::from_le_bytes(number)) };
    }
    rest.iter().fold(crc as u32, |crc, byte| {
        // SAFETY: the same.
        unsafe { _mm_crc32_u8(crc, *byte) }
    })
}
