//! The records of one batch, unpacked: the rules of `tideline/kafka/records.py`, which has the words for
//! what is wrong with them.
//!
//! A record is read within its own bytes, nothing is indexed but by checked access, and nothing is
//! allocated.

const NO_TIMESTAMP: i64 = -1;
/// Records that are named of those whose timestamp is not allowed, as Kafka does.
pub const NAMED: usize = 3;

/// What is wrong with records, by the numbers of `Fault` in `tideline/kafka/records.py`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Ends = 1,
    Size = 2,
    Attributes = 3,
    OffsetDelta = 4,
    Key = 5,
    Value = 6,
    Headers = 7,
    HeaderKey = 8,
    HeaderValue = 9,
    Bits = 10,
    Short = 11,
    Behind = 12,
    TooManyHeaders = 13,
}

/// The first fault: of which record, counted from 0, and the number that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub fault: Fault,
    pub record: i64,
    pub value: i64,
}

/// What is to be known. Timestamps are as far from the batch's base as records have them.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub count: i64,
    /// Records before this one, counted from 0, are read and do not count.
    pub from: i64,
    /// Of the batch.
    pub base_timestamp: i64,
    /// Inclusive, as is `latest`: bounds of timestamps that are allowed.
    pub earliest: i64,
    pub latest: i64,
    /// Of all records together.
    pub most_headers: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Of the records that have a timestamp; of none, the largest number.
    pub earliest: i64,
    /// Of none, the smallest number.
    pub latest: i64,
    /// Of all records together.
    pub headers: i64,
    /// The first records whose timestamp is not allowed: number and timestamp.
    pub out_of_range: [(i64, i64); NAMED],
    /// How many of them are told.
    pub told: usize,
}

/// Reads every record of `body`: as many as there have to be, each as long as it says, offsets without a
/// gap, nothing behind the last.
pub fn read(body: &[u8], asked: &Asked) -> Result<Summary, Wrong> {
    let none = NO_TIMESTAMP.wrapping_sub(asked.base_timestamp);
    let (mut earliest, mut latest) = (i64::MAX, i64::MIN);
    let headers = walk(body, asked.count, asked.most_headers, |number, timestamp| {
        if timestamp != none && number >= asked.from {
            earliest = earliest.min(timestamp);
            latest = latest.max(timestamp);
        }
        true
    })?;
    let (mut out_of_range, mut told) = ([(0, 0); NAMED], 0);
    if latest > asked.latest || (earliest < asked.earliest && earliest <= latest) {
        walk(body, asked.count, asked.most_headers, |number, timestamp| {
            let allowed = (asked.earliest..=asked.latest).contains(&timestamp);
            if !allowed && timestamp != none && number >= asked.from {
                out_of_range[told] = (number, timestamp);
                told += 1;
            }
            told < NAMED
        })?;
    }
    Ok(Summary { earliest, latest, headers, out_of_range, told })
}

/// Tells `each` the number and timestamp of every record, as long as it says to go on, and returns the
/// headers of all that were read.
fn walk(
    body: &[u8],
    count: i64,
    most_headers: i64,
    mut each: impl FnMut(i64, i64) -> bool,
) -> Result<i64, Wrong> {
    let (mut left, mut headers) = (Reader(body), 0);
    for record in 0..count {
        let wrong = |fault, value| Wrong { fault, record, value };
        let size = left.u32().map_err(|gone| match gone {
            Gone::End => wrong(Fault::Ends, 0),
            Gone::Bits(bits) => wrong(Fault::Bits, bits),
        })?;
        let taken = if size & 1 == 0 { left.take(size >> 1) } else { None };
        let fields = Reader(taken.ok_or_else(|| wrong(Fault::Size, unpacked(size)))?);
        let (timestamp, more) = fields
            .whole(record, most_headers - headers)
            .map_err(|(fault, value)| wrong(fault, value))?;
        headers += more;
        if !each(record, timestamp) {
            return Ok(headers);
        }
    }
    match left.0.len() as i64 {
        0 => Ok(headers),
        behind => Err(Wrong { fault: Fault::Behind, record: count.max(0), value: behind }),
    }
}

/// Why a number cannot be read.
enum Gone {
    /// The bytes end within it.
    End,
    /// It has more bits than these.
    Bits(i64),
}

type Found<T> = Result<T, (Fault, i64)>;

impl From<Gone> for (Fault, i64) {
    fn from(gone: Gone) -> Self {
        match gone {
            Gone::End => (Fault::Short, 0),
            Gone::Bits(bits) => (Fault::Bits, bits),
        }
    }
}

/// Records, or one of them, as far as they are not read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn u8(&mut self) -> Result<u8, Gone> {
        let (first, left) = self.0.split_first().ok_or(Gone::End)?;
        self.0 = left;
        Ok(*first)
    }
    fn take(&mut self, size: u64) -> Option<&'a [u8]> {
        let (taken, left) = self.0.split_at_checked(usize::try_from(size).ok()?)?;
        self.0 = left;
        Some(taken)
    }
    /// A number of at most so many bits, as it is packed (zigzag).
    fn packed(&mut self, bits: u32) -> Result<u64, Gone> {
        let mut value = 0;
        let mut shift = 0;
        while shift < bits {
            let byte = self.u8()?;
            let digits = u64::from(byte & 0x7F);
            if digits >> (bits - shift).min(7) != 0 {
                break;
            }
            value |= digits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
            shift += 7;
        }
        Err(Gone::Bits(i64::from(bits)))
    }
    fn u32(&mut self) -> Result<u64, Gone> {
        self.packed(32)
    }
    /// Skip what may be none (-1) behind its length; less than that is `wrong`.
    fn skip_nullable(&mut self, wrong: Fault) -> Found<()> {
        // A client decides what comes: no branch on whether there is one, which it can make
        // unforeseeable.
        let packed = self.u32()?;
        if (packed & 1) > u64::from(packed == 1) {
            return Err((wrong, 0));
        }
        self.take(packed >> 1).map(|_| ()).ok_or((Fault::Short, 0))
    }
    /// Of the record of that number, all of it: its timestamp, and how many headers it has.
    fn whole(mut self, number: i64, most_headers: i64) -> Found<(i64, i64)> {
        if self.u8()? != 0 {
            return Err((Fault::Attributes, 0)); // none is defined
        }
        let timestamp = unpacked(self.packed(64)?);
        let delta = self.u32()?;
        if delta as i64 != 2 * number {
            return Err((Fault::OffsetDelta, unpacked(delta)));
        }
        self.skip_nullable(Fault::Key)?;
        self.skip_nullable(Fault::Value)?;
        let headers = unpacked(self.u32()?);
        if !(0..=self.0.len() as i64).contains(&headers) {
            return Err((Fault::Headers, headers));
        }
        if headers > most_headers {
            return Err((Fault::TooManyHeaders, headers));
        }
        for _ in 0..headers {
            let key = self.u32()?;
            if key & 1 != 0 {
                return Err((Fault::HeaderKey, 0));
            }
            self.take(key >> 1).ok_or((Fault::Short, 0))?;
            self.skip_nullable(Fault::HeaderValue)?;
        }
        if self.0.is_empty() {
            Ok((timestamp, headers))
        } else {
            Err((Fault::Short, 0))
        }
    }
}

fn unpacked(packed: u64) -> i64 {
    (packed >> 1) as i64 ^ -((packed & 1) as i64)
}
