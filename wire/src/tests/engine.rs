use super::{framed, request};
use crate::connection::Leave;
use crate::engine::{Cause, Engine, Limits, LIMITS};
use crate::stream::Stream;
use crate::sys::{Epoll, Event, Fd};
use crate::table::{Change, Rule, Topics, Treatment, APIS};
use crate::told::kind;
use std::io::{Read, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

const IN_FLIGHT: u64 = 4;
const MOST: u64 = 1_000_000;
const OF_STRANGERS: u64 = 10_000;
const HEARTBEAT: i16 = 12;
/// An API that has a handler.
const HANDLED: i16 = 11;

/// (kind, aux, connection, number, payload) of what Python was told.
type Told = (u32, u32, u64, u64, Vec<u8>);

struct Bench {
    engine: Engine,
    epoll: Arc<Epoll>,
}

impl Bench {
    /// In which heartbeats pass.
    fn new() -> Bench {
        let epoll = Arc::new(Epoll::new().unwrap());
        let mut told = [60_000; LIMITS];
        told[..5].copy_from_slice(&[MOST, MOST, IN_FLIGHT, OF_STRANGERS, OF_STRANGERS]);
        let mut engine = Engine::new(Limits::of(&told), Arc::clone(&epoll)).unwrap();
        let closed = Rule { treatment: Treatment::Python, lowest: 0, highest: -1, looks: true };
        let mut rules = [closed; APIS];
        rules[HEARTBEAT as usize] =
            Rule { treatment: Treatment::Pass, lowest: 0, highest: 4, looks: false };
        engine.table.change(Change { rules, joined: Topics::default(), left: Topics::default() });
        Bench { engine, epoll }
    }
    fn client(&mut self) -> (u64, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (self.engine.adopt(Stream::Plain(Fd::of(ours.into_raw_fd()))), theirs)
    }
    /// One that has shown itself and is joined to its broker.
    fn joined(&mut self) -> (u64, UnixStream, UnixStream) {
        let (id, mut client) = self.client();
        self.engine.with(id, |_, conn| conn.young = false);
        client.write_all(&framed(&request(HEARTBEAT, 0, 0, b""))).unwrap();
        self.turn();
        let dials = self.told(kind::DIAL);
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let stream = Stream::Plain(Fd::of(ours.into_raw_fd()));
        let made = self.engine.with(id, |engine, conn| engine.joined(conn, dials[0].3, stream));
        assert_eq!(made, Some(true));
        (id, client, theirs)
    }
    /// Deal with everything that is ready.
    fn turn(&mut self) {
        loop {
            let mut events = [Event { events: 0, data: 0 }; 8];
            let count = self.epoll.wait(&mut events, 0);
            for event in &events[..count] {
                self.engine.event(event);
            }
            self.engine.settled();
            if count == 0 {
                return;
            }
        }
    }
    fn all_told(&mut self) -> Vec<Told> {
        let raw = self.engine.take().to_vec();
        let (mut found, mut at) = (Vec::new(), 0);
        let int = |at: usize| u32::from_ne_bytes(raw[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(raw[at..at + 8].try_into().unwrap());
        while at < raw.len() {
            let (size, place) = (long(at + 24) as usize, long(at + 32));
            let payload = if place == 0 { raw[at + 40..at + 40 + size].to_vec() } else { vec![] };
            found.push((int(at), int(at + 4), long(at + 8), long(at + 16), payload));
            at += 40 + if place == 0 { size } else { 0 };
        }
        self.engine.read();
        found
    }
    fn told(&mut self, what: u32) -> Vec<Told> {
        self.all_told().into_iter().filter(|each| each.0 == what).collect()
    }
    fn begun(&mut self, id: u64) {
        self.engine.with(id, |engine, conn| engine.begun(conn));
    }
    fn fill(&mut self, id: u64, slot: u64, answer: &[u8]) {
        self.engine.with(id, |engine, conn| engine.fill(conn, slot, Some(answer.to_vec())));
    }
}

fn read(from: &mut UnixStream) -> Vec<u8> {
    from.set_nonblocking(true).unwrap();
    let mut found = Vec::new();
    let _ = from.read_to_end(&mut found); // ends where nothing is there now
    found
}

#[test]
fn what_a_stranger_sends_is_pythons_one_request_after_the_other() {
    let mut bench = Bench::new();
    let (id, mut client) = bench.client();
    let frames = [request(HEARTBEAT, 0, 1, b""), request(HEARTBEAT, 0, 2, b"")];
    client.write_all(&[framed(&frames[0]), framed(&frames[1])].concat()).unwrap();
    bench.turn();
    let told = bench.told(kind::FRAME);
    assert_eq!(told, [(kind::FRAME, 0, id, 0, frames[0].clone())]);
    bench.begun(id);
    assert_eq!(bench.told(kind::FRAME), [(kind::FRAME, 0, id, 1, frames[1].clone())]);
}

#[test]
fn what_passes_comes_to_the_broker_as_it_was_and_its_answer_to_the_client() {
    let mut bench = Bench::new();
    let (_, mut client, mut broker) = bench.joined();
    let frames = [0, 1].map(|number| framed(&request(HEARTBEAT, 0, number, b"")));
    client.write_all(&frames[1]).unwrap();
    bench.turn();
    assert_eq!(read(&mut broker), frames.concat());
    let answers = [0, 1].map(|number: i32| framed(&number.to_be_bytes()));
    broker.write_all(&answers.concat()).unwrap();
    bench.turn();
    assert_eq!(read(&mut client), answers.concat());
}

#[test]
fn answers_leave_in_the_order_of_the_requests() {
    let mut bench = Bench::new();
    let (id, mut client, mut broker) = bench.joined();
    client.write_all(&framed(&request(HANDLED, 0, 1, b""))).unwrap();
    bench.turn();
    assert_eq!(bench.told(kind::FRAME)[0].3, 1);
    bench.begun(id);
    client.write_all(&framed(&request(HEARTBEAT, 0, 2, b""))).unwrap();
    bench.turn();
    let answers = [0, 2].map(|number: i32| framed(&number.to_be_bytes()));
    broker.write_all(&answers.concat()).unwrap();
    bench.turn();
    assert_eq!(read(&mut client), answers[0], "the second waits for the handler's");
    bench.fill(id, 1, &1i32.to_be_bytes());
    assert_eq!(read(&mut client), [framed(&1i32.to_be_bytes()), answers[1].clone()].concat());
}

#[test]
fn no_more_requests_are_begun_than_may_be_in_flight() {
    let mut bench = Bench::new();
    let (_, mut client, mut broker) = bench.joined();
    for number in 1..20 {
        client.write_all(&framed(&request(HEARTBEAT, 0, number, b""))).unwrap();
    }
    bench.turn();
    let one = framed(&request(HEARTBEAT, 0, 0, b"")).len();
    assert_eq!(read(&mut broker).len(), one * IN_FLIGHT as usize);
    assert_eq!(bench.engine.bounds[0], 1);
    let answers: Vec<u8> = (0..2i32).flat_map(|number| framed(&number.to_be_bytes())).collect();
    broker.write_all(&answers).unwrap();
    bench.turn();
    assert_eq!(read(&mut broker).len(), one * 2, "at half of them it goes on");
}

#[test]
fn a_length_that_may_not_be_ends_its_connection_before_anything_is_reserved() {
    for (size, young) in
        [(0, false), (-1, false), (MOST as i32 + 1, false), (OF_STRANGERS as i32 + 1, true)]
    {
        let mut bench = Bench::new();
        let (id, mut client) = bench.client();
        bench.engine.with(id, |_, conn| conn.young = young);
        client.write_all(&[&size.to_be_bytes()[..], b"abc"].concat()).unwrap();
        bench.turn();
        let told = bench.told(kind::ENDED);
        assert_eq!((told.len(), told[0].1), (1, Cause::Bound as u32), "{size}");
        assert!(String::from_utf8_lossy(&told[0].4).contains("are allowed"));
    }
}

#[test]
fn a_length_that_is_only_declared_takes_no_memory() {
    let mut bench = Bench::new();
    let (id, mut client) = bench.client();
    bench.engine.with(id, |_, conn| conn.young = false);
    client.write_all(&[&(MOST as i32).to_be_bytes()[..], b"abc"].concat()).unwrap();
    bench.turn();
    let capacity = bench.engine.with(id, |_, conn| conn.client.input.capacity()).unwrap();
    assert!(capacity < 64, "{capacity}");
    assert_eq!(bench.told(kind::ENDED), []);
}

#[test]
fn a_late_call_about_a_connection_that_is_gone_is_not_obeyed() {
    let mut bench = Bench::new();
    let (first, client) = bench.client();
    drop(client);
    bench.turn();
    let (second, _client) = bench.client();
    assert_eq!(first & 0xFFFF_FFFF, second & 0xFFFF_FFFF, "in the place of the first");
    let ends = |engine: &mut Engine, conn: &mut _| engine.end(conn, Cause::Python, "", Leave::Flush);
    assert_eq!(bench.engine.with(first, ends), None);
    assert_eq!(bench.engine.with(second, |_, conn| conn.ended.is_none()), Some(true));
}
