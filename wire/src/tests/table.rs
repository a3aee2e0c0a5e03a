use super::{list_offsets, names, request};
use crate::engine::topics;
use crate::table::{Change, Rule, Sessions, Table, Treatment, Way, APIS};

const LIST_OFFSETS: usize = 2;
const HEARTBEAT: usize = 12;

/// In which heartbeats pass, and searches for offsets by what they name.
fn open(tracked: &[&str], let_go: &[&str]) -> Change {
    let closed = Rule { treatment: Treatment::Python, lowest: 0, highest: -1, looks: true };
    let mut rules = [closed; APIS];
    rules[HEARTBEAT] = Rule { treatment: Treatment::Pass, lowest: 0, highest: 4, looks: false };
    rules[LIST_OFFSETS] =
        Rule { treatment: Treatment::PassByTopics, lowest: 1, highest: 9, looks: false };
    Change { rules, joined: topics(&names(tracked), &[]), left: topics(&names(let_go), &[]) }
}

fn passes(table: &Table, frame: &[u8]) -> bool {
    !matches!(table.way(frame, &mut Sessions::new(), 0), Way::Python { .. })
}

#[test]
fn a_table_that_nobody_filled_passes_nothing() {
    assert!(!passes(&Table::closed(), &request(12, 0, 1, b"")));
}

#[test]
fn a_request_passes_in_the_versions_that_are_offered_alone() {
    let mut table = Table::closed();
    table.change(open(&[], &[]));
    assert!(passes(&table, &request(12, 4, 1, b"")));
    for (api, version) in [(12, 5), (12, -1), (11, 0), (-1, 0), (127, 0), (128, 0), (i16::MAX, 0)] {
        assert!(!passes(&table, &request(api, version, 1, b"")), "{api} {version}");
    }
}

#[test]
fn a_topic_is_pythons_from_when_it_is_tracked_until_it_is_not() {
    let mut table = Table::closed();
    let frame = request(2, 1, 1, &list_offsets("orders", 1));
    table.change(open(&["others"], &[]));
    assert!(passes(&table, &frame));
    table.change(open(&["orders"], &[]));
    assert!(!passes(&table, &frame));
    table.change(open(&[], &["orders"]));
    assert!(passes(&table, &frame));
}

#[test]
fn what_cannot_be_walked_is_pythons() {
    let mut table = Table::closed();
    table.change(open(&[], &[]));
    let frame = request(2, 1, 1, &list_offsets("orders", 1));
    assert!(!passes(&table, &frame[..frame.len() - 1]));
    assert!(!passes(&table, b""));
}
