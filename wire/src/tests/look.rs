use super::request;
use crate::crc::{by_tables, crc32c};
use crate::look::{batch, request as look, Row, Seen, COLUMNS};
use crate::sys::crc32c_by_processor;
use crate::walks::header;

const RECORD: &[u8] = b"\x0E\0\0\0\x01\x02v\0";
const ROOM: usize = 4;

fn made(record: &[u8]) -> Vec<u8> {
    let mut inside = vec![0, 0, 0, 0, 0, 0];
    for number in [5i64, 5, -1] {
        inside.extend_from_slice(&number.to_be_bytes());
    }
    inside.extend_from_slice(b"\xFF\xFF\xFF\xFF\xFF\xFF\0\0\0\x01");
    inside.extend_from_slice(record);
    let mut made = vec![0; 8];
    made.extend_from_slice(&(9 + inside.len() as i32).to_be_bytes());
    made.extend_from_slice(b"\xFF\xFF\xFF\xFF\x02");
    made.extend_from_slice(&crc32c(&inside).to_be_bytes());
    made.extend_from_slice(&inside);
    made
}

/// A Produce of version 8 with two partitions of one topic.
fn produce() -> Vec<u8> {
    let mut body = b"\xFF\xFF\xFF\xFF\0\0\0\0\0\0\0\x01\0\x01t\0\0\0\x02".to_vec();
    for records in [made(RECORD), made(b"\x0E\0\0\x02\x01\x02v\0")] {
        body.extend_from_slice(&[0, 0, 0, 7]);
        body.extend_from_slice(&(records.len() as i32).to_be_bytes());
        body.extend_from_slice(&records);
    }
    request(0, 8, 7, &body)
}

fn looked(frame: &[u8], room: usize) -> Option<Vec<Row>> {
    let mut rows = [[0; COLUMNS]; ROOM];
    let head = header(frame)?;
    let found =
        look(frame, head.body_start as i64, head.api_version, 1 << 20, &mut rows[..room.min(ROOM)])?;
    Some(rows[..found].to_vec())
}

#[test]
fn the_crc_is_that_of_castagnoli_with_the_processor_and_without() {
    assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    let data: Vec<u8> = (0..100_u32).map(|number| (number * 37 % 251) as u8).collect();
    for end in 0..data.len() {
        let some = &data[..end];
        if let Some(found) = crc32c_by_processor(!0, some) {
            assert_eq!(found, by_tables(!0, some), "of {end} bytes");
        }
    }
}

#[test]
fn of_a_fine_batch_its_numbers_are_told() {
    let seen = Seen {
        producer_id: -1,
        producer_epoch: -1,
        base_sequence: -1,
        record_count: 1,
        max_timestamp: 5,
        earliest: 5,
        latest: 5,
        headers: 0,
    };
    assert_eq!(batch(&made(RECORD)), Some(seen));
}

#[test]
fn a_batch_that_gives_itself_an_offset_is_for_python_to_refuse() {
    let mut moved = made(RECORD);
    assert!(batch(&moved).is_some());
    moved[7] = 1;
    assert!(batch(&moved).is_none());
}

#[test]
fn of_a_request_each_batch_is_told_and_whether_it_is_fine() {
    let rows = looked(&produce(), ROOM).unwrap();
    assert_eq!(rows.iter().map(|row| (row[2], row[5])).collect::<Vec<_>>(), [(7, 1), (7, 0)]);
    assert_eq!(looked(&produce(), 1), None, "there is no room for both");
}

#[test]
fn no_count_or_length_leads_a_look_beyond_the_bytes_that_are_there() {
    let whole = produce();
    for size in 0..whole.len() {
        assert_eq!(looked(&whole[..size], ROOM), None, "cut at {size}");
    }
    for at in 8..whole.len() - 3 {
        for value in [i32::MIN, -2, -1, 0, 0x7F7F_7F7F, i32::MAX] {
            let mut frame = whole.clone();
            frame[at..at + 4].copy_from_slice(&value.to_be_bytes());
            for version in 0..14 {
                frame[2..4].copy_from_slice(&i16::to_be_bytes(version));
                looked(&frame, ROOM);
            }
        }
    }
    for at in [-9, -1, whole.len() as i64, whole.len() as i64 + 9] {
        assert_eq!(look(&whole, at, 8, 1 << 20, &mut []), None);
    }
}

#[test]
fn no_number_leads_a_look_beyond_the_records_that_are_there() {
    for at in 0..RECORD.len() {
        for byte in 0..=u8::MAX {
            for more in [&b""[..], b"\xFF\xFF\xFF\xFF\x0F", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"]
            {
                let mut record = RECORD.to_vec();
                record[at] = byte;
                record.splice(at + 1..at + 1, more.iter().copied());
                batch(&made(&record));
            }
        }
    }
}
