//! Walks over requests and answers, as `tideline/kafka/named_topics.py`, `answer_tags.py` and
//! `protocol.py` walk them. Each says what Python's says, or `None`: the frame is Python's then.
//!
//! Nothing is indexed but through `Bytes`, whose every access is checked.

/// Topics, and of a Produce partitions, that are walked.
const MOST_WALKED: i64 = 500;
const LONGEST_NAME: i64 = 249;
const LONGEST_STRING: i64 = 32_767;
const MOST_PARTITIONS: i64 = 10_000;

pub const PRODUCE: i16 = 0;
pub const FETCH: i16 = 1;

/// A topic as a request names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key<'a> {
    Name(&'a [u8]),
    Id(&'a [u8; 16]),
    /// The id of no topic (all zeros).
    Nothing,
}

/// Which session a Fetch goes on with; `(0, -1)` if it asks for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    pub id: i32,
    pub epoch: i32,
}

pub const NO_SESSION: Session = Session { id: 0, epoch: -1 };

#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn end(self) -> i64 {
        self.0.len() as i64
    }
    pub(crate) fn u8(self, at: i64) -> Option<u8> {
        self.0.get(usize::try_from(at).ok()?).copied()
    }
    pub(crate) fn slice(self, at: i64, end: i64) -> Option<&'a [u8]> {
        self.0.get(usize::try_from(at).ok()?..usize::try_from(end).ok()?)
    }
    pub(crate) fn i16(self, at: i64) -> Option<i64> {
        let raw: [u8; 2] = self.slice(at, at + 2)?.try_into().ok()?;
        Some(i64::from(i16::from_be_bytes(raw)))
    }
    pub(crate) fn i32(self, at: i64) -> Option<i64> {
        let raw: [u8; 4] = self.slice(at, at + 4)?.try_into().ok()?;
        Some(i64::from(i32::from_be_bytes(raw)))
    }
    pub(crate) fn i64(self, at: i64) -> Option<i64> {
        let raw: [u8; 8] = self.slice(at, at + 8)?.try_into().ok()?;
        Some(i64::from_be_bytes(raw))
    }
    /// Unsigned, of at most 32 bits: (value, next position).
    pub(crate) fn varint(self, mut at: i64) -> Option<(i64, i64)> {
        let mut value: u64 = 0;
        for shift in [0u32, 7, 14, 21, 28] {
            let byte = self.u8(at)?;
            at += 1;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return (value <= 0xFFFF_FFFF).then_some((value as i64, at));
            }
        }
        None
    }
    fn no_tags(self, at: i64) -> Option<i64> {
        (self.u8(at)? == 0).then_some(at + 1)
    }
    /// Of an array that is not null: (elements, next position).
    fn length(self, at: i64, flexible: bool) -> Option<(i64, i64)> {
        let (count, at) = if flexible {
            let (count, at) = self.varint(at)?;
            (count - 1, at)
        } else {
            (self.i32(at)?, at + 4)
        };
        (count >= 0).then_some((count, at))
    }
    /// Of a string, -1 of none: (bytes, next position).
    fn size(self, at: i64, flexible: bool) -> Option<(i64, i64)> {
        if flexible {
            let (size, at) = self.varint(at)?;
            Some((size - 1, at))
        } else {
            Some((self.i16(at)?, at + 2))
        }
    }
    fn key(self, at: i64, flexible: bool, by_id: bool) -> Option<(Key<'a>, i64)> {
        if by_id {
            let raw: &[u8; 16] = self.slice(at, at + 16)?.try_into().ok()?;
            let key = if raw.iter().all(|byte| *byte == 0) { Key::Nothing } else { Key::Id(raw) };
            return Some((key, at + 16));
        }
        let (size, at) = self.size(at, flexible)?;
        if !(0..=LONGEST_NAME).contains(&size) {
            return None;
        }
        let name = self.slice(at, at + size)?;
        std::str::from_utf8(name).ok()?;
        Some((Key::Name(name), at + size))
    }
    /// Skip a string that may be null.
    fn string(self, at: i64, flexible: bool) -> Option<i64> {
        let (size, at) = self.size(at, flexible)?;
        if size <= 0 {
            return (size >= -1).then_some(at);
        }
        if size > LONGEST_STRING {
            return None;
        }
        std::str::from_utf8(self.slice(at, at + size)?).ok()?;
        Some(at + size)
    }
}

pub(crate) fn bounded(count: i64) -> Option<i64> {
    (count <= MOST_WALKED).then_some(count)
}

/// What every request begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub api_key: i16,
    pub api_version: i16,
    pub correlation: i32,
    /// Of the byte after the client id.
    pub body_start: usize,
}

/// `None`: it is malformed.
pub fn header(frame: &[u8]) -> Option<Header> {
    let bytes = Bytes(frame);
    let length = bytes.i16(8)?;
    let end = 10 + length.max(0);
    if length < -1 || end > bytes.end() {
        return None;
    }
    std::str::from_utf8(bytes.slice(10, end)?).ok()?;
    Some(Header {
        api_key: bytes.i16(0)? as i16,
        api_version: bytes.i16(2)? as i16,
        correlation: bytes.i32(4)? as i32,
        body_start: end as usize,
    })
}

/// Tells `each` the topics of a Produce, Fetch, ListOffsets, OffsetForLeaderEpoch or Metadata
/// request (of that one those of a list that is not empty), in their order. `None`: Python has to look.
/// What was told before a `None` means nothing.
pub fn named_topics<'a>(
    frame: &'a [u8],
    header: &Header,
    each: &mut dyn FnMut(Key<'a>),
) -> Option<Session> {
    let version = header.api_version;
    let (least, most, flexible_since) = match header.api_key {
        PRODUCE => (3, 13, 9),
        FETCH => (4, 18, 12),
        2 => (1, 11, 6),
        3 => (1, 13, 9),
        23 => (2, 4, 4),
        _ => return None,
    };
    if !(least..=most).contains(&version) {
        return None;
    }
    let bytes = Bytes(frame);
    let body = Body { bytes, version, flexible: version >= flexible_since };
    let at = body.tags(header.body_start as i64)?;
    let (session, end) = match header.api_key {
        PRODUCE => produce(body, at, each)?,
        FETCH => fetch(body, at, each)?,
        2 => list_offsets(body, at, each)?,
        3 => metadata(body, at, each)?,
        _ => leader_epoch(body, at, each)?,
    };
    (body.tags(end)? <= bytes.end()).then_some(session)
}

/// Of a request, in the layout of its version.
#[derive(Clone, Copy)]
pub(crate) struct Body<'a> {
    pub(crate) bytes: Bytes<'a>,
    version: i16,
    pub(crate) flexible: bool,
}

impl<'a> Body<'a> {
    /// Of a Produce; `None`: of a version that is Python's.
    pub(crate) fn of_produce(frame: &'a [u8], version: i16) -> Option<Self> {
        let flexible = version >= 9;
        (3..=13).contains(&version).then_some(Self { bytes: Bytes(frame), version, flexible })
    }
    /// Where tagged fields end that have to be none, in a version that has them.
    pub(crate) fn tags(self, at: i64) -> Option<i64> {
        if self.flexible {
            self.bytes.no_tags(at)
        } else {
            Some(at)
        }
    }
    /// Of bytes that only a version from `since` on has.
    fn since(self, since: i16, size: i64) -> i64 {
        if self.version >= since {
            size
        } else {
            0
        }
    }
    pub(crate) fn key(self, at: i64, by_id: bool) -> Option<(Key<'a>, i64)> {
        self.bytes.key(at, self.flexible, by_id)
    }
    pub(crate) fn length(self, at: i64) -> Option<(i64, i64)> {
        self.bytes.length(at, self.flexible)
    }
    fn string(self, at: i64) -> Option<i64> {
        self.bytes.string(at, self.flexible)
    }
}

type Each<'e, 'a> = &'e mut dyn FnMut(Key<'a>);
type Walked = Option<(Session, i64)>;

fn produce<'a>(body: Body<'a>, at: i64, each: Each<'_, 'a>) -> Walked {
    let bytes = body.bytes;
    let at = body.string(at)?; // transactional id
    let (count, mut at) = body.length(at + 2 + 4)?; // acks, timeout
    let mut walked = count;
    for _ in 0..bounded(count)? {
        let (key, next) = body.key(at, body.version >= 13)?;
        each(key);
        let (partitions, next) = body.length(next)?;
        at = next;
        walked += partitions;
        bounded(walked)?;
        for _ in 0..bounded(partitions)? {
            at += 4; // index
            if body.flexible {
                let (size, next) = bytes.varint(at)?;
                at = bytes.no_tags(next + (size - 1).max(0))?;
            } else {
                let size = bytes.i32(at)?;
                if size < -1 {
                    return None;
                }
                at += 4 + size.max(0);
            }
            if at > bytes.end() {
                return None;
            }
        }
        at = body.tags(at)?;
    }
    Some((NO_SESSION, at))
}

fn fetch<'a>(body: Body<'a>, at: i64, each: Each<'_, 'a>) -> Walked {
    // replica id, longest wait, least bytes, most bytes, isolation level
    let mut at = at + 4 - body.since(15, 4) + 4 + 4 + 4 + 1;
    let mut session = NO_SESSION;
    if body.version >= 7 {
        let bytes = body.bytes;
        session = Session { id: bytes.i32(at)? as i32, epoch: bytes.i32(at + 4)? as i32 };
        at += 8;
    }
    // partition, leader epoch, offset, last fetched epoch, log start, most bytes
    let row = 4 + body.since(9, 4) + 8 + body.since(12, 4) + body.since(5, 8) + 4;
    let by_id = body.version >= 13;
    let (mut at, walked) = topics(body, at, by_id, row, false, MOST_PARTITIONS, each)?;
    if body.version >= 7 {
        let left = MOST_PARTITIONS - walked;
        at = topics(body, at, by_id, 4, true, left, &mut |_| ())?.0;
    }
    if body.version >= 11 {
        at = body.string(at)?; // rack
    }
    Some((session, at))
}

fn list_offsets<'a>(body: Body<'a>, at: i64, each: Each<'_, 'a>) -> Walked {
    let at = at + 4 + body.since(2, 1); // replica id, isolation level
    let row = 4 + body.since(4, 4) + 8; // partition, leader epoch, timestamp
    let (at, _) = topics(body, at, false, row, false, MOST_PARTITIONS, each)?;
    Some((NO_SESSION, at + body.since(10, 4))) // timeout
}

fn leader_epoch<'a>(body: Body<'a>, at: i64, each: Each<'_, 'a>) -> Walked {
    let at = at + body.since(3, 4); // replica id
    let row = 4 + body.since(2, 4) + 4; // partition, leader epoch, epoch asked about
    let (at, _) = topics(body, at, false, row, false, MOST_PARTITIONS, each)?;
    Some((NO_SESSION, at))
}

fn metadata<'a>(body: Body<'a>, at: i64, each: Each<'_, 'a>) -> Walked {
    let (bytes, version) = (body.bytes, body.version);
    let (count, mut at) = body.length(at)?;
    if count == 0 {
        return None; // all topics, or none
    }
    for _ in 0..bounded(count)? {
        if version >= 10 {
            let (key, next) = body.key(at, true)?;
            at = next;
            if bytes.u8(at)? == 0 {
                each(key); // no name
                at = bytes.no_tags(at + 1)?;
                continue;
            }
        }
        let (key, next) = body.key(at, false)?;
        each(key);
        at = body.tags(next)?;
    }
    // creation of topics, authorized operations of the cluster, of topics
    let flags =
        i64::from(version >= 4) + i64::from((8..=10).contains(&version)) + i64::from(version >= 8);
    if bytes.slice(at, at + flags)?.iter().any(|flag| *flag > 1) {
        return None;
    }
    Some((NO_SESSION, at + flags))
}

/// An array of topics with their partitions of `row` bytes each, tags apart; `bare`: those are
/// numbers, which have no tags. (next position, elements), of which `most` may be.
fn topics<'a>(
    body: Body<'a>,
    at: i64,
    by_id: bool,
    row: i64,
    bare: bool,
    most: i64,
    each: Each<'_, 'a>,
) -> Option<(i64, i64)> {
    let bytes = body.bytes;
    let (count, mut at) = body.length(at)?;
    let mut walked = count;
    let tagged = body.flexible && !bare;
    let size = if tagged { row + 1 } else { row };
    for _ in 0..bounded(count)? {
        let (key, next) = body.key(at, by_id)?;
        each(key);
        let (partitions, next) = body.length(next)?;
        at = next;
        walked += partitions;
        let behind = at + partitions * size;
        if behind > bytes.end() || walked > most {
            return None;
        }
        if tagged {
            for number in 0..partitions {
                if bytes.u8(at + number * size + row)? != 0 {
                    return None;
                }
            }
        }
        at = body.tags(behind)?;
    }
    Some((at, walked))
}

/// `acks` of a Produce; `None`: Python has to look.
pub fn produce_acks(frame: &[u8], header: &Header) -> Option<i16> {
    if !(3..=13).contains(&header.api_version) {
        return None;
    }
    let bytes = Bytes(frame);
    let mut at = header.body_start as i64;
    let length = if header.api_version >= 9 {
        if bytes.u8(at)? != 0 || bytes.u8(at + 1)? > 0x7F {
            return None;
        }
        at += 2;
        i64::from(bytes.u8(at - 1)?) - 1
    } else {
        at += 2;
        bytes.i16(at - 2)?
    };
    Some(bytes.i16(at + length.max(0))? as i16)
}

/// Where a Fetch (version 4 or later) has the bytes of records that it asks for at most.
pub fn fetch_most_at(frame: &[u8], header: &Header) -> Option<usize> {
    let bytes = Bytes(frame);
    let mut at = header.body_start as i64;
    if header.api_version >= 12 {
        at = bytes.no_tags(at)?;
    }
    at += if header.api_version < 15 { 4 } else { 0 } + 4 + 4;
    bytes.i32(at)?;
    usize::try_from(at).ok()
}

/// Whether the answer to a Produce or Fetch of `version` goes to its client as it came: it has no
/// addresses in it. False: Python has to look.
pub fn answer_passes(frame: &[u8], api_key: i16, version: i16) -> bool {
    match (api_key, version) {
        (PRODUCE, 10..=13) => produce_answer(Bytes(frame), version).is_some(),
        (PRODUCE, 0..=9) => true,
        (FETCH, 16..=18) => fetch_answer(Bytes(frame)).is_some(),
        (FETCH, 0..=15) => true,
        (PRODUCE | FETCH | 3 | 10 | 18 | 60 | 78 | 79, _) => false,
        _ => true,
    }
}

const ANSWER_HEAD: i64 = 4 + 1;
/// Partition, error, and three numbers of 8 bytes, of both APIs.
const ANSWER_ROW: i64 = 4 + 2 + 8 + 8 + 8;

fn counted(bytes: Bytes<'_>, at: i64) -> Option<(i64, i64)> {
    let (found, at) = bytes.varint(at)?;
    (found > 0).then_some((found - 1, at))
}

fn produce_answer(bytes: Bytes<'_>, version: i16) -> Option<()> {
    let (topics, mut at) = counted(bytes, ANSWER_HEAD)?;
    for _ in 0..topics {
        if version >= 13 {
            at += 16;
        } else {
            let (size, next) = counted(bytes, at)?;
            at = next + size;
        }
        let (partitions, next) = counted(bytes, at)?;
        at = next;
        for _ in 0..partitions {
            at += ANSWER_ROW;
            // No record errors, no message, no tagged fields.
            if bytes.slice(at, at + 3)? != b"\x01\0\0" {
                return None;
            }
            at += 3;
        }
        at = bytes.no_tags(at)?;
    }
    at += 4; // throttle time
    (at + 1 == bytes.end() && bytes.u8(at)? == 0).then_some(())
}

fn fetch_answer(bytes: Bytes<'_>) -> Option<()> {
    // throttle time, error, session
    let (topics, mut at) = counted(bytes, ANSWER_HEAD + 4 + 2 + 4)?;
    for _ in 0..topics {
        let (partitions, next) = counted(bytes, at + 16)?;
        at = next;
        for _ in 0..partitions {
            at += ANSWER_ROW;
            if bytes.u8(at)? > 1 {
                return None; // aborted transactions
            }
            let (size, next) = bytes.varint(at + 1 + 4)?; // preferred replica
            at = bytes.no_tags(next + (size - 1).max(0))?;
        }
        at = bytes.no_tags(at)?;
    }
    (at + 1 == bytes.end() && bytes.u8(at)? == 0).then_some(())
}
