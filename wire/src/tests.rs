//! What the library decides by itself, without Python: the walk over frames, the look into batches, the
//! table, the bounds. That walks and look say what Python's say is shown from Python
//! (`tests/unit/kafka/test_wire_walks.py`, `test_native_look.py`).

mod engine;
mod input;
mod look;
mod table;
mod walks;

/// A request: its header (client id "c"), and what is behind it.
fn request(api_key: i16, api_version: i16, correlation: i32, body: &[u8]) -> Vec<u8> {
    let mut made = Vec::new();
    made.extend_from_slice(&api_key.to_be_bytes());
    made.extend_from_slice(&api_version.to_be_bytes());
    made.extend_from_slice(&correlation.to_be_bytes());
    made.extend_from_slice(b"\0\x01c");
    made.extend_from_slice(body);
    made
}

/// With its length before it.
fn framed(frame: &[u8]) -> Vec<u8> {
    [&(frame.len() as u32).to_be_bytes(), frame].concat()
}

/// Names as `wire_table` takes them.
fn names(of: &[&str]) -> Vec<u8> {
    of.iter().flat_map(|name| [&(name.len() as u16).to_ne_bytes(), name.as_bytes()].concat()).collect()
}

/// The body of a ListOffsets of version 1: one topic, so many partitions.
fn list_offsets(topic: &str, partitions: i32) -> Vec<u8> {
    let mut body = [&(-1i32).to_be_bytes()[..], &1i32.to_be_bytes()].concat();
    body.extend_from_slice(&(topic.len() as i16).to_be_bytes());
    body.extend_from_slice(topic.as_bytes());
    body.extend_from_slice(&partitions.to_be_bytes());
    for partition in 0..partitions {
        body.extend_from_slice(&partition.to_be_bytes());
        body.extend_from_slice(&(-1i64).to_be_bytes());
    }
    body
}
