//! The system calls that the standard library has no names for.

use std::io::{Error, Result};
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
const MSG_NOSIGNAL: c_int = 0x4000;
const SHUT_WR: c_int = 1;
/// That go to the kernel in one call; what is behind them waits for the next.
const MOST_PARTS: usize = 16;
const SOL_SOCKET: c_int = 1;
const SO_ERROR: c_int = 4;
const SO_KEEPALIVE: c_int = 9;
const IPPROTO_TCP: c_int = 6;
const TCP_NODELAY: c_int = 1;
const SOCK_STREAM: c_int = 1;
const EINPROGRESS: i32 = 115;

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
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn connect(fd: c_int, address: *const c_void, size: u32) -> c_int;
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, size: *mut u32) -> c_int;
    fn sendmsg(fd: c_int, message: *const Message, flags: c_int) -> isize;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, size: u32) -> c_int;
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
    #[allow(dead_code)]
    /// End our side; the peer may still send.
    pub fn end_writing(&self) -> Result<()> {
        // SAFETY: no pointers.
        checked(unsafe { shutdown(self.0, SHUT_WR) }).map(|_| ())
    }
    /// Small frames at once; a silent peer is probed.
    pub fn tune(&self) {
        let on: c_int = 1;
        for (level, name) in [(IPPROTO_TCP, TCP_NODELAY), (SOL_SOCKET, SO_KEEPALIVE)] {
            // SAFETY: an int of its size.
            unsafe { setsockopt(self.0, level, name, (&raw const on).cast(), 4) };
        }
    }
    /// The error that a connection under way has ended with.
    pub fn error(&self) -> Option<Error> {
        let (mut code, mut size): (c_int, u32) = (0, 4);
        // SAFETY: an int of its size.
        let failed = unsafe {
            getsockopt(self.0, SOL_SOCKET, SO_ERROR, (&raw mut code).cast(), &raw mut size)
        };
        if failed < 0 {
            return Some(Error::last_os_error());
        }
        (code != 0).then(|| Error::from_raw_os_error(code))
    }
    /// Begin to connect to a `sockaddr`, whose first two bytes are its family.
    pub fn connecting(address: &[u8]) -> Result<Fd> {
        let family = c_int::from(u16::from_ne_bytes([address[0], address[1]]));
        // SAFETY: no pointers.
        let fd = Fd(checked(unsafe { socket(family, SOCK_STREAM | CLOEXEC | NONBLOCK, 0) })?);
        // SAFETY: the address is as long as is said.
        let result = unsafe { connect(fd.0, address.as_ptr().cast(), address.len() as u32) };
        match checked(result) {
            Err(error) if error.raw_os_error() != Some(EINPROGRESS) => Err(error),
            _ => Ok(fd),
        }
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
        let found = unsafe {
            epoll_wait(self.raw(), events.as_mut_ptr(), events.len() as c_int, timeout_ms)
        };
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
