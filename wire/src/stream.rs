//! What the bytes of one side of a connection come from and go to. Every read and write of a
//! connection is here, so that what encrypts them is known nowhere else.

use crate::sys::Fd;
use crate::tls::{Context, Session};
use std::io::Result;
use std::time::{Duration, Instant};

pub enum Stream {
    Plain(Fd),
    Tls(Fd, Box<Session>),
}

impl Stream {
    /// Encrypted by `context`; `name`: what the broker's certificate has to be for, if it is one
    /// with a broker. Within `handshake` both have to have shaken hands.
    pub fn encrypted(
        fd: Fd,
        context: &Context,
        name: Option<&str>,
        handshake: Duration,
    ) -> Result<Stream> {
        let mut session = Box::new(Session::new(context, name, handshake)?);
        session.begin(&fd)?;
        Ok(Stream::Tls(fd, session))
    }
    /// The descriptor whose readiness is waited for.
    pub fn fd(&self) -> &Fd {
        match self {
            Stream::Plain(fd) | Stream::Tls(fd, _) => fd,
        }
    }
    /// Bytes read into `buffer`, at most `most`, or a record more; 0 at the end. Where nothing is
    /// there now: `WouldBlock`.
    pub fn read(&mut self, buffer: &mut [u8], most: usize) -> Result<usize> {
        match self {
            Stream::Plain(fd) => fd.recv(&mut buffer[..most]),
            Stream::Tls(fd, session) => session.recv(fd, buffer, most),
        }
    }
    /// How many bytes of `parts`, one behind the other, were taken. Where none is taken now:
    /// `WouldBlock`.
    pub fn write(&mut self, parts: &[&[u8]]) -> Result<usize> {
        match self {
            Stream::Plain(fd) => fd.send(parts),
            Stream::Tls(fd, session) => session.send(fd, parts),
        }
    }
    /// Whether hands are being shaken: nothing else is read or written until then.
    pub fn is_shaking(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
            Stream::Tls(_, session) => session.is_shaking(),
        }
    }
    /// Whether they should have been, by `now`.
    pub fn is_late(&self, now: Instant) -> bool {
        match self {
            Stream::Plain(_) => false,
            Stream::Tls(_, session) => session.is_late(now),
        }
    }
    /// Write what waits for the socket, as far as that takes it.
    pub fn flush(&mut self) -> Result<()> {
        match self {
            Stream::Plain(_) => Ok(()),
            Stream::Tls(fd, session) => session.flush(fd),
        }
    }
    pub fn is_encrypted(&self) -> bool {
        matches!(self, Stream::Tls(..))
    }
    /// Whether the peer has said that it sends nothing more.
    pub fn is_left(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
            Stream::Tls(_, session) => session.is_left(),
        }
    }
    /// What was agreed on; nothing for a plain one.
    pub fn told(&self) -> String {
        match self {
            Stream::Plain(_) => String::new(),
            Stream::Tls(_, session) => session.told(),
        }
    }
    /// Bytes that were taken and wait for the socket.
    pub fn unsent(&self) -> usize {
        match self {
            Stream::Plain(_) => 0,
            Stream::Tls(_, session) => session.unsent(),
        }
    }
    /// Take leave of the peer, which may still send. What was written before is sent first.
    pub fn end_writing(&mut self) -> Result<()> {
        match self {
            Stream::Plain(fd) => fd.end_writing(),
            Stream::Tls(fd, session) => session.leave(fd),
        }
    }
}
