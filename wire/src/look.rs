//! A look into the batches of a Produce: the rules of `tideline/kafka/produced.py` for batches whose records
//! are not compressed; those of their records are in `records.rs`. A batch is fine by them, or Python has to look: what is
//! wrong with one, and in which words it is refused, is Python's.
//!
//! Nothing is indexed but by checked access, and nothing is allocated.

use crate::crc::crc32c;
use crate::records::{self, Asked};
use crate::walks::{bounded, Body, Bytes, Key};

/// Of a batch, before its records.
pub const HEADER: i64 = 61;
/// Base offset and length, which the length itself does not count.
const OVERHEAD: i64 = 12;
const MAGIC: u8 = 2;
/// From where the CRC is of.
const CHECKED_FROM: i64 = 21;
const MOST_RECORDS: i64 = 1_000_000;
const NO_TIMESTAMP: i64 = -1;

/// What is told of a batch that is fine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub producer_id: i64,
    pub producer_epoch: i64,
    pub base_sequence: i64,
    pub record_count: i64,
    pub max_timestamp: i64,
    /// Of the records that have a timestamp; of none, the largest number.
    pub earliest: i64,
    /// Of none, the smallest number.
    pub latest: i64,
    /// Of all records together.
    pub headers: i64,
}

/// Of a batch: the columns of [`Seen`].
pub const BATCH: usize = 8;
/// Of a batch of a request: where its topic's name or id begins, and its bytes; the partition; where the
/// batch begins, and its bytes; 1 if it is fine; and the columns of [`Seen`].
pub const COLUMNS: usize = 6 + BATCH;
pub type Row = [i64; COLUMNS];

impl Seen {
    pub fn columns(&self) -> [i64; BATCH] {
        [
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
            self.max_timestamp,
            self.earliest,
            self.latest,
            self.headers,
        ]
    }
}

/// How many `rows` a Produce has whose header ends at `at`: one for each batch, in the order of the
/// request. `None`: Python has to look. Such are those that `walked_produce` of `named_topics.py` says
/// nothing of, but that `most` is how many bytes of records there may be; that have other acks than 1
/// and -1; that have less records than a header of a batch; and more batches than there are `rows`.
pub fn request(frame: &[u8], at: i64, version: i16, most: i64, rows: &mut [Row]) -> Option<usize> {
    let body = Body::of_produce(frame, version)?;
    let (bytes, by_id) = (body.bytes, version >= 13);
    let at = body.tags(at)?;
    // Nobody's transaction.
    let nobody = if body.flexible { &b"\0"[..] } else { b"\xFF\xFF" };
    let acks_at = at + nobody.len() as i64;
    if bytes.slice(at, acks_at)? != nobody || ![-1, 1].contains(&bytes.i16(acks_at)?) {
        return None;
    }
    let (count, mut at) = body.length(acks_at + 2 + 4)?; // acks, timeout
    let (mut walked, mut left, mut found) = (count, most, 0);
    for _ in 0..bounded(count)? {
        let (key, next) = body.key(at, by_id)?;
        let topic_size = if let Key::Name(name) = key { name.len() as i64 } else { 16 };
        let topic_at = next - topic_size;
        let (partitions, next) = body.length(next)?;
        at = next;
        walked += partitions;
        bounded(walked)?;
        for _ in 0..bounded(partitions)? {
            let partition = bytes.i32(at)?;
            let (size, start) = if body.flexible {
                let (size, start) = bytes.varint(at + 4)?;
                (size - 1, start)
            } else {
                (bytes.i32(at + 4)?, at + 8)
            };
            left -= size;
            if size < HEADER || left < 0 {
                return None;
            }
            let seen = batch(bytes.slice(start, start + size)?);
            let [a, b, c, d, e, f, g, h] = seen.map_or([0; BATCH], |seen| seen.columns());
            let fine = i64::from(seen.is_some());
            *rows.get_mut(found)? =
                [topic_at, topic_size, partition, start, size, fine, a, b, c, d, e, f, g, h];
            found += 1;
            at = body.tags(start + size)?;
        }
        at = body.tags(at)?;
    }
    (body.tags(at)? <= bytes.end()).then_some(found)
}

/// What is to be known of `records`, if they are one batch that is fine whatever its topic allows.
/// `None`: Python has to look.
pub fn batch(records: &[u8]) -> Option<Seen> {
    let bytes = Bytes(records);
    let length = bytes.i32(8)?;
    let (size, magic, attributes) = (bytes.end(), bytes.u8(16)?, bytes.i16(21)?);
    if size < HEADER || length + OVERHEAD != size || magic != MAGIC || attributes != 0 {
        return None;
    }
    if bytes.i64(0)? != 0 {
        return None;
    }
    let (last, record_count) = (bytes.i32(23)?, bytes.i32(57)?);
    if !(1..=MOST_RECORDS).contains(&record_count) || last != record_count - 1 {
        return None;
    }
    let (base_timestamp, max_timestamp) = (bytes.i64(27)?, bytes.i64(35)?);
    let (producer_id, producer_epoch) = (bytes.i64(43)?, bytes.i16(51)?);
    let base_sequence = bytes.i32(53)?;
    let is_numbered = base_sequence >= 0 && producer_epoch >= 0;
    if base_timestamp < -1 || max_timestamp < -1 || producer_id >= 0 && !is_numbered {
        return None;
    }
    if i64::from(crc32c(bytes.slice(CHECKED_FROM, size)?)) != bytes.i32(17)? & 0xFFFF_FFFF {
        return None;
    }
    let asked = Asked {
        count: record_count,
        from: 0,
        base_timestamp,
        earliest: i64::MIN,
        latest: i64::MAX,
        most_headers: i64::MAX,
    };
    let found = records::read(bytes.slice(HEADER, size)?, &asked).ok()?;
    let (mut earliest, mut latest) = (i64::MAX, i64::MIN);
    if found.earliest <= found.latest {
        earliest = base_timestamp.checked_add(found.earliest)?;
        latest = base_timestamp.checked_add(found.latest)?;
    }
    let seen = Seen {
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
        max_timestamp,
        earliest,
        latest,
        headers: found.headers,
    };
    // Another one in the header is set right, by Python.
    (latest.max(NO_TIMESTAMP) == max_timestamp).then_some(seen)
}
