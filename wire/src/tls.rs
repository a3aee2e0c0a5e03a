//! TLS by the OpenSSL that Python's own `ssl` has loaded: its functions are looked up by name in the
//! very same library, so that clients and brokers meet one OpenSSL, which one package updates. The
//! process has another one, of psycopg's wheel, for Postgres alone (docs/security.md).
//!
//! OpenSSL never sees a socket. It is handed what was read, and leaves what is to be written; so it
//! waits for nothing but more input, whichever way it writes (a handshake, a new key, an alert).

use crate::sys::Fd;
use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::io::{Error, ErrorKind, Result};
use std::os::raw::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::ptr::{null, null_mut};
use std::slice;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Of encrypted bytes: read at once, and sealed before the socket is asked whether it takes more.
const PIECE: usize = 131_072;
/// What may come out at most beyond what is put in: a record of which the last byte was missing.
const SPARE: usize = RECORD + HEADS;
/// Most of what is in one.
const RECORD: usize = 16_384;
/// More than what stands around it.
const HEADS: usize = 512;
/// 1.1.1
const OLDEST: c_ulong = 0x1010_1000;
const RTLD_NOW_NOLOAD: c_int = 2 | 4;

const SSL_ERROR_WANT_READ: c_int = 2;
const SSL_ERROR_ZERO_RETURN: c_int = 6;
const SSL_CTRL_MODE: c_int = 33;
const SSL_CTRL_SET_TLSEXT_HOSTNAME: c_int = 55;
const SSL_CTRL_SET_MIN_PROTO_VERSION: c_int = 123;
const SSL_CTRL_SET_MAX_PROTO_VERSION: c_int = 124;
/// What was not taken is asked for again by other bytes of the same; no buffers at rest.
const MODES: c_long = 2 | 0x10;
const SSL_FILETYPE_PEM: c_int = 1;
const BIO_TYPE_SOURCE_SINK: c_int = 0x0400;
const BIO_CTRL_FLUSH: c_int = 11;
const BIO_READ_AGAIN: c_int = 1 | 8;
const BIO_AGAIN: c_int = 7 | 8;
const X509_V_OK: c_long = 0;
const NAME_MISMATCHES: [c_long; 2] = [62, 64];

type Raw = *mut c_void;
type BioRead = unsafe extern "C" fn(Raw, *mut c_char, c_int) -> c_int;
type BioWrite = unsafe extern "C" fn(Raw, *const c_char, c_int) -> c_int;
type BioCtrl = unsafe extern "C" fn(Raw, c_int, c_long, Raw) -> c_long;
type Password = unsafe extern "C" fn(*mut c_char, c_int, c_int, Raw) -> c_int;

extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> Raw;
    fn dlsym(library: Raw, name: *const c_char) -> Raw;
}

macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        #[allow(non_snake_case)]
        struct Functions { $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)* }

        impl Functions {
            /// # Safety
            /// `library` is one that `dlopen` gave, and has OpenSSL's functions by these names.
            unsafe fn of(library: Raw) -> std::result::Result<Functions, String> {
                Ok(Functions { $($name: {
                    let found = dlsym(library, concat!(stringify!($name), "\0").as_ptr().cast());
                    if found.is_null() {
                        return Err(format!("it has no {}", stringify!($name)));
                    }
                    std::mem::transmute::<Raw, unsafe extern "C" fn($($argument),*) $(-> $result)?>(found)
                },)* })
            }
        }
    };
}

functions! {
    OpenSSL_version_num() -> c_ulong;
    TLS_server_method() -> *const c_void;
    TLS_client_method() -> *const c_void;
    SSL_CTX_new(*const c_void) -> Raw;
    SSL_CTX_free(Raw);
    SSL_CTX_get_options(Raw) -> u64;
    SSL_CTX_set_options(Raw, u64) -> u64;
    SSL_CTX_clear_options(Raw, u64) -> u64;
    SSL_CTX_ctrl(Raw, c_int, c_long, Raw) -> c_long;
    SSL_CTX_set_cipher_list(Raw, *const c_char) -> c_int;
    SSL_CTX_set_ciphersuites(Raw, *const c_char) -> c_int;
    SSL_CTX_set_default_passwd_cb(Raw, Password);
    SSL_CTX_use_certificate_chain_file(Raw, *const c_char) -> c_int;
    SSL_CTX_use_PrivateKey_file(Raw, *const c_char, c_int) -> c_int;
    SSL_CTX_check_private_key(Raw) -> c_int;
    SSL_CTX_load_verify_locations(Raw, *const c_char, *const c_char) -> c_int;
    SSL_CTX_set_default_verify_paths(Raw) -> c_int;
    SSL_CTX_set_verify(Raw, c_int, *const c_void);
    SSL_CTX_set_session_id_context(Raw, *const u8, c_uint) -> c_int;
    SSL_CTX_get0_param(Raw) -> Raw;
    X509_VERIFY_PARAM_get_flags(Raw) -> c_ulong;
    X509_VERIFY_PARAM_set_flags(Raw, c_ulong) -> c_int;
    X509_VERIFY_PARAM_clear_flags(Raw, c_ulong) -> c_int;
    X509_VERIFY_PARAM_set_hostflags(Raw, c_uint);
    X509_VERIFY_PARAM_set1_host(Raw, *const c_char, usize) -> c_int;
    X509_VERIFY_PARAM_set1_ip_asc(Raw, *const c_char) -> c_int;
    SSL_new(Raw) -> Raw;
    SSL_free(Raw);
    SSL_set_bio(Raw, Raw, Raw);
    SSL_set_accept_state(Raw);
    SSL_set_connect_state(Raw);
    SSL_ctrl(Raw, c_int, c_long, Raw) -> c_long;
    SSL_get0_param(Raw) -> Raw;
    SSL_do_handshake(Raw) -> c_int;
    SSL_read(Raw, Raw, c_int) -> c_int;
    SSL_write(Raw, *const c_void, c_int) -> c_int;
    SSL_shutdown(Raw) -> c_int;
    SSL_get_error(Raw, c_int) -> c_int;
    SSL_get_verify_result(Raw) -> c_long;
    SSL_get_version(Raw) -> *const c_char;
    SSL_get_current_cipher(Raw) -> *const c_void;
    SSL_CIPHER_get_name(*const c_void) -> *const c_char;
    X509_verify_cert_error_string(c_long) -> *const c_char;
    ERR_clear_error();
    ERR_peek_last_error() -> c_ulong;
    ERR_reason_error_string(c_ulong) -> *const c_char;
    BIO_get_new_index() -> c_int;
    BIO_meth_new(c_int, *const c_char) -> Raw;
    BIO_meth_set_read(Raw, BioRead) -> c_int;
    BIO_meth_set_write(Raw, BioWrite) -> c_int;
    BIO_meth_set_ctrl(Raw, BioCtrl) -> c_int;
    BIO_new(Raw) -> Raw;
    BIO_free(Raw) -> c_int;
    BIO_set_init(Raw, c_int);
    BIO_set_data(Raw, Raw);
    BIO_get_data(Raw) -> Raw;
    BIO_set_flags(Raw, c_int);
    BIO_clear_flags(Raw, c_int);
}

struct Library {
    call: Functions,
    /// How OpenSSL reads and writes: see [`Pipe`].
    method: Raw,
}

// SAFETY: functions, and a table of functions that nothing changes.
unsafe impl Send for Library {}
// SAFETY: the same.
unsafe impl Sync for Library {}

static LIBRARY: OnceLock<Library> = OnceLock::new();

/// Find OpenSSL by the path of what is linked to it, Python's module `_ssl`; `version` is what that
/// says of its own. An error says what is missing.
pub fn find(path: &CStr, version: u64) -> std::result::Result<(), String> {
    if LIBRARY.get().is_some() {
        return Ok(());
    }
    // SAFETY: a path; nothing is loaded that is not loaded yet. Names are OpenSSL's own, which mean
    // the same from 1.1.1 on, as `version` is checked to be.
    let found = unsafe {
        let loaded = dlopen(path.as_ptr(), RTLD_NOW_NOLOAD);
        if loaded.is_null() {
            return Err("it is not loaded".into());
        }
        let call = Functions::of(loaded)?;
        let own = (call.OpenSSL_version_num)();
        if own != version as c_ulong || own < OLDEST {
            return Err(format!(
                "it is version {own:#x}, and {version:#x} was looked for, of 1.1.1 or newer"
            ));
        }
        let kind = (call.BIO_get_new_index)() | BIO_TYPE_SOURCE_SINK;
        let method = (call.BIO_meth_new)(kind, c"a gateway's connection".as_ptr());
        if method.is_null() {
            return Err("it has no memory".into());
        }
        (call.BIO_meth_set_read)(method, take_input);
        (call.BIO_meth_set_write)(method, leave_output);
        (call.BIO_meth_set_ctrl)(method, control);
        Library { call, method }
    };
    let _ = LIBRARY.set(found); // another thread's is the same
    Ok(())
}

fn library() -> Result<&'static Library> {
    LIBRARY.get().ok_or_else(|| Error::other("OpenSSL was not looked for"))
}

/// # Safety
/// `text` is null, or ends with a zero and stays.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        "?".into()
    } else {
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

impl Library {
    /// What failed last on this thread, in OpenSSL's words; its list is empty afterwards, also for
    /// Python, which may be on the same thread.
    fn problem(&self, otherwise: &str) -> String {
        // SAFETY: no pointers of ours; OpenSSL's texts stay.
        unsafe {
            let code = (self.call.ERR_peek_last_error)();
            let words = match code {
                0 => otherwise.into(),
                _ => text((self.call.ERR_reason_error_string)(code)),
            };
            (self.call.ERR_clear_error)();
            words
        }
    }
}

// -- what OpenSSL reads and writes

/// What one call of OpenSSL may read, and what it has written.
struct Pipe {
    input: *const u8,
    left: usize,
    output: Vec<u8>,
}

/// # Safety
/// Of the three below: OpenSSL calls them while [`Session::call`] runs, which has put the pipe there.
unsafe extern "C" fn take_input(bio: Raw, place: *mut c_char, size: c_int) -> c_int {
    let Some(own) = LIBRARY.get() else { return -1 };
    let pipe = (own.call.BIO_get_data)(bio).cast::<Pipe>();
    (own.call.BIO_clear_flags)(bio, BIO_AGAIN);
    if pipe.is_null() || (*pipe).left == 0 || size <= 0 {
        (own.call.BIO_set_flags)(bio, BIO_READ_AGAIN);
        return -1;
    }
    let taken = (*pipe).left.min(size as usize);
    std::ptr::copy_nonoverlapping((*pipe).input, place.cast::<u8>(), taken);
    (*pipe).input = (*pipe).input.add(taken);
    (*pipe).left -= taken;
    taken as c_int
}

unsafe extern "C" fn leave_output(bio: Raw, bytes: *const c_char, size: c_int) -> c_int {
    let Some(own) = LIBRARY.get() else { return -1 };
    let pipe = (own.call.BIO_get_data)(bio).cast::<Pipe>();
    if pipe.is_null() || size < 0 {
        return -1;
    }
    (*pipe).output.extend_from_slice(slice::from_raw_parts(bytes.cast::<u8>(), size as usize));
    size
}

unsafe extern "C" fn control(_: Raw, what: c_int, _: c_long, _: Raw) -> c_long {
    c_long::from(what == BIO_CTRL_FLUSH)
}

// -- contexts

/// What the connections of one side are encrypted by; `null` and 0: not said. As the `SSLContext`
/// that it is made after says.
#[repr(C)]
pub struct Rules {
    pub is_server: c_int,
    /// 0 none, 1 optional, 2 required.
    pub verify: c_int,
    pub options: u64,
    pub verify_flags: u64,
    pub host_flags: u32,
    pub lowest: c_int,
    pub highest: c_int,
    /// Of TLS 1.2, in OpenSSL's form.
    pub ciphers: *const c_char,
    pub suites: *const c_char,
    pub certificate: *const c_char,
    pub key: *const c_char,
    pub authorities: *const c_char,
    /// Those of the system, if none are named.
    pub system_authorities: c_int,
}

/// An `SSL_CTX`, which is not changed once it is made.
pub struct Context {
    raw: Raw,
    is_server: bool,
}

// SAFETY: OpenSSL counts references by atomic operations; sessions only read the rest.
unsafe impl Send for Context {}
// SAFETY: the same.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(own) = LIBRARY.get() {
            // SAFETY: it is ours; sessions have references of their own.
            unsafe { (own.call.SSL_CTX_free)(self.raw) };
        }
    }
}

/// Nobody is asked for the password of a key.
unsafe extern "C" fn no_password(_: *mut c_char, _: c_int, _: c_int, _: Raw) -> c_int {
    -1
}

impl Context {
    /// # Safety
    /// The texts of `rules` end with a zero, or are null.
    pub unsafe fn new(rules: &Rules) -> Result<Context> {
        let own = library()?;
        let is_server = rules.is_server != 0;
        (own.call.ERR_clear_error)();
        let method = if is_server { own.call.TLS_server_method } else { own.call.TLS_client_method };
        let raw = (own.call.SSL_CTX_new)(method());
        if raw.is_null() {
            return Err(Error::other(own.problem("no context can be made")));
        }
        let made = Context { raw, is_server };
        made.set_up(&own.call, rules)
            .map_err(|what| Error::other(format!("{what}: {}", own.problem("refused"))))?;
        (own.call.ERR_clear_error)();
        Ok(made)
    }

    unsafe fn set_up(&self, call: &Functions, rules: &Rules) -> std::result::Result<(), &'static str> {
        let raw = self.raw;
        let set = |made: c_int, what: &'static str| if made == 1 { Ok(()) } else { Err(what) };
        (call.SSL_CTX_ctrl)(raw, SSL_CTRL_MODE, MODES, null_mut());
        (call.SSL_CTX_clear_options)(raw, (call.SSL_CTX_get_options)(raw) & !rules.options);
        (call.SSL_CTX_set_options)(raw, rules.options);
        for (bound, version) in [
            (SSL_CTRL_SET_MIN_PROTO_VERSION, rules.lowest),
            (SSL_CTRL_SET_MAX_PROTO_VERSION, rules.highest),
        ] {
            let version = c_long::from(version.max(0));
            set((call.SSL_CTX_ctrl)(raw, bound, version, null_mut()) as c_int, "its versions")?;
        }
        set((call.SSL_CTX_set_cipher_list)(raw, rules.ciphers), "its ciphers")?;
        set((call.SSL_CTX_set_ciphersuites)(raw, rules.suites), "its ciphers of TLS 1.3")?;
        let verified = (call.SSL_CTX_get0_param)(raw);
        let flags = rules.verify_flags as c_ulong;
        let more = (call.X509_VERIFY_PARAM_get_flags)(verified) & !flags;
        (call.X509_VERIFY_PARAM_clear_flags)(verified, more);
        set((call.X509_VERIFY_PARAM_set_flags)(verified, flags), "its rules of verifying")?;
        (call.X509_VERIFY_PARAM_set_hostflags)(verified, rules.host_flags);
        let verify = [0, 1, 3][rules.verify.clamp(0, 2) as usize];
        (call.SSL_CTX_set_verify)(raw, verify, null());
        let named = b"tideline";
        (call.SSL_CTX_set_session_id_context)(raw, named.as_ptr(), named.len() as c_uint);
        (call.SSL_CTX_set_default_passwd_cb)(raw, no_password);
        if !rules.certificate.is_null() {
            let chain = (call.SSL_CTX_use_certificate_chain_file)(raw, rules.certificate);
            set(chain, "its certificate")?;
            set((call.SSL_CTX_use_PrivateKey_file)(raw, rules.key, SSL_FILETYPE_PEM), "its key")?;
            set((call.SSL_CTX_check_private_key)(raw), "its key and certificate")?;
        }
        if !rules.authorities.is_null() {
            let loaded = (call.SSL_CTX_load_verify_locations)(raw, rules.authorities, null());
            set(loaded, "its authorities")?;
        } else if rules.system_authorities != 0 {
            set((call.SSL_CTX_set_default_verify_paths)(raw), "the system's authorities")?;
        }
        Ok(())
    }
}

// -- sessions

thread_local! {
    /// What is read encrypted: decrypted, and gone, before anything else is read.
    static READ: RefCell<Vec<u8>> = RefCell::new(vec![0; PIECE]);
    /// What is written encrypted, kept for its room.
    static WRITTEN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static JOINED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// TLS on one socket. At rest it has no buffer: neither of OpenSSL's nor one of ours.
pub struct Session {
    raw: Raw,
    bio: Raw,
    /// The name that the peer's certificate has to be for.
    name: Option<String>,
    /// Encrypted, and not taken by the socket yet.
    unsent: Vec<u8>,
    sent: usize,
    /// By when hands have to be shaken.
    until: Instant,
    is_shaken: bool,
    /// The peer has taken leave.
    is_left: bool,
    has_failed: bool,
    /// Our side is to end.
    leaves: bool,
}

// SAFETY: only ever used by one thread at a time, under the engine's lock.
unsafe impl Send for Session {}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(own) = LIBRARY.get() {
            // SAFETY: it is ours, and its BIO is its own.
            unsafe {
                (own.call.SSL_free)(self.raw);
                (own.call.ERR_clear_error)();
            }
        }
    }
}

enum Outcome {
    Done(usize),
    /// All input was taken.
    WantsMore,
    Left,
}

impl Session {
    /// `name`: of the server, if we are its client: verified, and sent unless it is an address.
    pub fn new(context: &Context, name: Option<&str>, handshake: Duration) -> Result<Session> {
        let own = library()?;
        let call = &own.call;
        // SAFETY: OpenSSL's own pointers, each looked at before it is used.
        unsafe {
            (call.ERR_clear_error)();
            let bio = (call.BIO_new)(own.method);
            if bio.is_null() {
                return Err(Error::other(own.problem("no memory")));
            }
            let raw = (call.SSL_new)(context.raw);
            if raw.is_null() {
                (call.BIO_free)(bio);
                return Err(Error::other(own.problem("no memory")));
            }
            (call.BIO_set_init)(bio, 1);
            (call.SSL_set_bio)(raw, bio, bio);
            let mut made = Session {
                raw,
                bio,
                name: name.map(String::from),
                unsent: Vec::new(),
                sent: 0,
                until: Instant::now() + handshake,
                is_shaken: false,
                is_left: false,
                has_failed: false,
                leaves: false,
            };
            if context.is_server {
                (call.SSL_set_accept_state)(raw);
            } else {
                (call.SSL_set_connect_state)(raw);
                made.expect(own)?;
            }
            Ok(made)
        }
    }

    fn expect(&mut self, own: &Library) -> Result<()> {
        let name = self.name.as_deref().unwrap_or_default();
        let refused = || Error::other(format!("'{name}' is no name that a certificate could be for"));
        let given = CString::new(name).map_err(|_| refused())?;
        if name.is_empty() || name.starts_with('.') {
            return Err(refused());
        }
        // SAFETY: the text lives for the calls, which copy it.
        let made = unsafe {
            let verified = (own.call.SSL_get0_param)(self.raw);
            if name.parse::<std::net::IpAddr>().is_ok() {
                (own.call.X509_VERIFY_PARAM_set1_ip_asc)(verified, given.as_ptr())
            } else {
                let raw = given.as_ptr().cast_mut().cast();
                let told = (own.call.SSL_ctrl)(self.raw, SSL_CTRL_SET_TLSEXT_HOSTNAME, 0, raw);
                told as c_int
                    & (own.call.X509_VERIFY_PARAM_set1_host)(verified, given.as_ptr(), name.len())
            }
        };
        if made == 1 {
            Ok(())
        } else {
            own.problem("");
            Err(refused())
        }
    }

    /// Whether the handshake is under way.
    pub fn is_shaking(&self) -> bool {
        !self.is_shaken
    }
    pub fn is_late(&self, now: Instant) -> bool {
        !self.is_shaken && now > self.until
    }
    /// Whether the peer sends nothing more.
    pub fn is_left(&self) -> bool {
        self.is_left
    }
    /// Encrypted bytes that wait for the socket.
    pub fn unsent(&self) -> usize {
        self.unsent.len() - self.sent
    }

    /// Version and cipher, once hands are shaken.
    pub fn told(&self) -> String {
        let Ok(own) = library() else { return String::new() };
        // SAFETY: OpenSSL's own pointers and texts.
        unsafe {
            let version = text((own.call.SSL_get_version)(self.raw));
            let cipher = (own.call.SSL_get_current_cipher)(self.raw);
            format!("{version} {}", text((own.call.SSL_CIPHER_get_name)(cipher)))
        }
    }

    /// One step of OpenSSL's, which may read of `pipe`.
    fn call(&mut self, pipe: &mut Pipe, step: impl FnOnce(&Functions, Raw) -> c_int) -> Result<Outcome> {
        let own = library()?;
        // SAFETY: the pipe outlives the step, and is not there afterwards.
        let (made, why) = unsafe {
            (own.call.ERR_clear_error)();
            (own.call.BIO_set_data)(self.bio, (pipe as *mut Pipe).cast());
            let made = step(&own.call, self.raw);
            let why = if made > 0 { 0 } else { (own.call.SSL_get_error)(self.raw, made) };
            (own.call.BIO_set_data)(self.bio, null_mut());
            (made, why)
        };
        match why {
            0 => Ok(Outcome::Done(made as usize)),
            SSL_ERROR_WANT_READ => Ok(Outcome::WantsMore),
            SSL_ERROR_ZERO_RETURN => Ok(Outcome::Left),
            _ => {
                self.has_failed = true;
                Err(Error::other(self.failure(own)))
            }
        }
    }

    fn failure(&self, own: &Library) -> String {
        let words = own.problem("the peer broke off");
        // SAFETY: OpenSSL's own pointers and texts.
        let code = unsafe { (own.call.SSL_get_verify_result)(self.raw) };
        if code == X509_V_OK || self.is_shaken {
            return format!("TLS: {words}");
        }
        // SAFETY: OpenSSL's own text, which it never frees.
        let why = unsafe { text((own.call.X509_verify_cert_error_string)(code)) };
        match &self.name {
            Some(name) if NAME_MISMATCHES.contains(&code) => {
                format!("TLS: {words}: {why}, it is not for '{name}'")
            }
            _ => format!("TLS: {words}: {why}"),
        }
    }

    /// Write what OpenSSL has left, as far as the socket takes it; the rest is kept.
    fn ship(&mut self, fd: &Fd, output: &mut Vec<u8>) -> Result<()> {
        let mut from = 0;
        if self.unsent() == 0 {
            while from < output.len() {
                match fd.send(&[&output[from..]]) {
                    Ok(count) => from += count,
                    Err(error) if again(&error) => break,
                    Err(error) => {
                        output.clear();
                        return Err(error);
                    }
                }
            }
        }
        self.unsent.extend_from_slice(&output[from..]);
        output.clear();
        Ok(())
    }

    /// Write what waits for the socket.
    pub fn flush(&mut self, fd: &Fd) -> Result<()> {
        while self.unsent() > 0 {
            match fd.send(&[&self.unsent[self.sent..]]) {
                Ok(count) => self.sent += count,
                Err(error) if again(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.unsent = Vec::new();
        self.sent = 0;
        if std::mem::take(&mut self.leaves) {
            fd.end_writing()?;
        }
        Ok(())
    }

    /// Begin the handshake: the first to speak is the client.
    pub fn begin(&mut self, fd: &Fd) -> Result<()> {
        let mut pipe = Pipe { input: null(), left: 0, output: Vec::new() };
        // SAFETY: as for each step: OpenSSL's pointer.
        self.call(&mut pipe, |call, raw| unsafe { (call.SSL_do_handshake)(raw) })?;
        self.ship(fd, &mut pipe.output)
    }

    /// As [`Fd::recv`], of what is in the records. Nothing read stays encrypted, so that who waits
    /// for the socket waits for all: of about `most` bytes, and a record that was half there.
    /// `buffer` is longer than [`SPARE`].
    pub fn recv(&mut self, fd: &Fd, buffer: &mut [u8], most: usize) -> Result<usize> {
        if self.is_left {
            return Ok(0);
        }
        let most = (most + HEADS).min(buffer.len().saturating_sub(SPARE));
        READ.with_borrow_mut(|encrypted| {
            let most = most.min(encrypted.len());
            let got = fd.recv(&mut encrypted[..most])?;
            if got == 0 {
                return Ok(0);
            }
            let opened = self.open(fd, &encrypted[..got], buffer)?;
            if opened == 0 && !self.is_left {
                return Err(Error::from(ErrorKind::WouldBlock));
            }
            Ok(opened)
        })
    }

    /// Decrypt all of `encrypted`, after the handshake if that ends in it. What it makes OpenSSL
    /// write is written.
    fn open(&mut self, fd: &Fd, encrypted: &[u8], buffer: &mut [u8]) -> Result<usize> {
        let (input, left) = (encrypted.as_ptr(), encrypted.len());
        let mut pipe = Pipe { input, left, output: WRITTEN.take() };
        let opened = self.open_all(&mut pipe, buffer);
        let shipped = self.ship(fd, &mut pipe.output); // an alert, too
        WRITTEN.set(pipe.output);
        let opened = opened?;
        shipped?;
        Ok(opened)
    }

    fn open_all(&mut self, pipe: &mut Pipe, buffer: &mut [u8]) -> Result<usize> {
        if !self.is_shaken {
            // SAFETY: OpenSSL's pointer.
            match self.call(pipe, |call, raw| unsafe { (call.SSL_do_handshake)(raw) })? {
                Outcome::Done(_) => self.is_shaken = true,
                Outcome::WantsMore => return Ok(0),
                Outcome::Left => {
                    self.is_left = true;
                    return Ok(0);
                }
            }
        }
        let mut opened = 0;
        while opened < buffer.len() {
            let place = &mut buffer[opened..];
            let (size, place) = (place.len() as c_int, place.as_mut_ptr().cast());
            // SAFETY: the place is as long as is said.
            match self.call(pipe, |call, raw| unsafe { (call.SSL_read)(raw, place, size) })? {
                Outcome::Done(count) => opened += count,
                Outcome::WantsMore => return Ok(opened),
                Outcome::Left => {
                    self.is_left = true;
                    return Ok(opened);
                }
            }
        }
        Err(Error::other("TLS: more came out of records than was in them"))
    }

    /// As [`Fd::send`]: how many bytes of `parts` are sealed, and sent or kept. While something is
    /// kept nothing more is sealed.
    pub fn send(&mut self, fd: &Fd, parts: &[&[u8]]) -> Result<usize> {
        self.flush(fd)?;
        if !self.is_shaken || self.unsent() > 0 {
            return Err(Error::from(ErrorKind::WouldBlock));
        }
        let (mut taken, mut at) = (0, 0);
        let mut joined = JOINED.take();
        for (number, part) in parts.iter().enumerate() {
            let rest = &part[at.min(part.len())..];
            at -= at.min(part.len());
            if rest.is_empty() {
                continue;
            }
            let following = &parts[number + 1..];
            let sealed = if rest.len() >= RECORD || following.iter().all(|part| part.is_empty()) {
                self.seal(fd, rest)
            } else {
                // Short ones go into one record.
                joined.clear();
                joined.extend_from_slice(rest);
                for more in following {
                    let room = RECORD.saturating_sub(joined.len());
                    joined.extend_from_slice(&more[..more.len().min(room)]);
                }
                at = joined.len() - rest.len();
                self.seal(fd, &joined)
            };
            match sealed {
                Ok(count) => taken += count,
                Err(error) => {
                    JOINED.set(joined);
                    return Err(error);
                }
            }
            if self.unsent() > 0 {
                break;
            }
        }
        JOINED.set(joined);
        Ok(taken)
    }

    fn seal(&mut self, fd: &Fd, bytes: &[u8]) -> Result<usize> {
        let mut sealed = 0;
        while sealed < bytes.len() && self.unsent() == 0 {
            let piece = &bytes[sealed..bytes.len().min(sealed + PIECE)];
            let mut pipe = Pipe { input: null(), left: 0, output: WRITTEN.take() };
            let (data, size) = (piece.as_ptr().cast(), piece.len() as c_int);
            // SAFETY: the piece is as long as is said.
            let made = self.call(&mut pipe, |call, raw| unsafe { (call.SSL_write)(raw, data, size) });
            let shipped = self.ship(fd, &mut pipe.output);
            WRITTEN.set(pipe.output);
            match made? {
                Outcome::Done(count) => sealed += count,
                _ => return Err(Error::other("TLS: what was to be written was not taken")),
            }
            shipped?;
        }
        Ok(sealed)
    }

    /// Take leave (`close_notify`), behind all that was sent; then our side ends, as soon as the
    /// socket has taken it.
    pub fn leave(&mut self, fd: &Fd) -> Result<()> {
        if self.is_shaken && !self.has_failed {
            let mut pipe = Pipe { input: null(), left: 0, output: Vec::new() };
            // SAFETY: OpenSSL's pointer. 0 says that the peer has not taken leave.
            let _ = self.call(&mut pipe, |call, raw| unsafe { (call.SSL_shutdown)(raw).max(1) });
            self.ship(fd, &mut pipe.output)?;
        }
        self.leaves = true;
        self.flush(fd)
    }
}

fn again(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
