use super::{list_offsets, request};
use crate::walks::{answer_passes, header, named_topics, Key, NO_SESSION};

fn topics(frame: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    let head = header(frame)?;
    named_topics(frame, &head, &mut |key| {
        if let Key::Name(name) = key {
            found.push(name.to_vec());
        }
    })
    .map(|session| {
        assert_eq!(session, NO_SESSION);
        found
    })
}

#[test]
fn a_walk_tells_the_topics_that_a_request_names() {
    let frame = request(2, 1, 7, &list_offsets("orders", 2));
    assert_eq!(header(&frame).map(|head| (head.api_key, head.correlation)), Some((2, 7)));
    assert_eq!(topics(&frame), Some(vec![b"orders".to_vec()]));
}

#[test]
fn of_a_frame_that_ends_anywhere_before_its_end_a_walk_says_nothing() {
    let whole = request(2, 1, 7, &list_offsets("orders", 2));
    for size in 0..whole.len() {
        assert_eq!(topics(&whole[..size]), None, "cut at {size}");
    }
}

#[test]
fn no_count_or_length_leads_a_walk_beyond_the_bytes_that_are_there() {
    let whole = request(2, 1, 7, &list_offsets("orders", 2));
    for at in 8..whole.len() - 3 {
        for value in [i32::MIN, -2, -1, 501, 10_001, i32::MAX] {
            let mut frame = whole.clone();
            frame[at..at + 4].copy_from_slice(&value.to_be_bytes());
            topics(&frame);
            for version in 0..14 {
                for api in [0, 1, 3, 23] {
                    frame[..2].copy_from_slice(&i16::to_be_bytes(api));
                    frame[2..4].copy_from_slice(&i16::to_be_bytes(version));
                    topics(&frame);
                }
            }
        }
    }
}

#[test]
fn more_than_may_be_walked_is_pythons() {
    assert!(topics(&request(2, 1, 7, &list_offsets("orders", 9_999))).is_some());
    assert_eq!(topics(&request(2, 1, 7, &list_offsets("orders", 10_000))), None);
}

#[test]
fn an_answer_with_addresses_in_it_is_pythons() {
    assert!(answer_passes(b"\0\0\0\x01", 12, 0));
    assert!(!answer_passes(b"\0\0\0\x01", 3, 0));
    assert!(!answer_passes(b"\0\0\0\x01\0\x01\0\0\0\0\x01\x01\0\0", 0, 10));
    assert!(answer_passes(b"\0\0\0\x01\0\x01\0\0\0\0\0", 0, 10));
}
