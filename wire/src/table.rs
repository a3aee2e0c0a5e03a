//! What passes, and what is Python's: the copy of what Python goes by.

use crate::walks::{
    fetch_most_at, header, named_topics, produce_acks, Header, Key, FETCH, NO_SESSION, PRODUCE,
};
use std::collections::{HashMap, HashSet};

pub const APIS: usize = 128;
/// The first version of Fetch that is walked.
const FETCH_SINCE: i16 = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    Python,
    Pass,
    /// It passes if all topics that it names are classic, and those of its fetch session.
    PassByTopics,
}

#[derive(Clone, Copy)]
pub struct Rule {
    pub treatment: Treatment,
    pub lowest: i16,
    pub highest: i16,
    /// Python looks into each answer.
    pub looks: bool,
}

/// Topics by their names and by their ids.
#[derive(Default)]
pub struct Topics {
    pub names: HashSet<Box<[u8]>>,
    pub ids: HashSet<[u8; 16]>,
}

impl Topics {
    fn has(&self, key: Key<'_>) -> bool {
        match key {
            Key::Name(name) => self.names.contains(name),
            Key::Id(id) => self.ids.contains(id),
            Key::Nothing => false,
        }
    }
    fn shares_none(&self, other: &Topics) -> bool {
        let (names, ids) = (&other.names, &other.ids);
        !self.names.iter().any(|name| names.contains(name))
            && !self.ids.iter().any(|id| ids.contains(id))
    }
}

/// An incremental fetch session of Kafka's (KIP-227) whose topics Python has looked at.
pub struct Session {
    topics: Topics,
    /// The version of the table under which none of them was tracked; 0: not looked at yet.
    checked: u64,
}

impl Session {
    pub fn new(topics: Topics) -> Session {
        Session { topics, checked: 0 }
    }
}

pub type Sessions = HashMap<i32, Session>;

/// What is tracked, and how each API is treated.
pub struct Table {
    rules: [Rule; APIS],
    tracked: Topics,
    /// Grows when a topic joins.
    version: u64,
}

/// What changes in it, all at once.
pub struct Change {
    pub rules: [Rule; APIS],
    pub joined: Topics,
    pub left: Topics,
}

pub enum Way {
    Pass(Header),
    /// The broker does not answer it.
    PassUnanswered,
    Python {
        produce: bool,
    },
}

impl Table {
    /// Everything is Python's.
    pub fn closed() -> Table {
        let rule = Rule { treatment: Treatment::Python, lowest: 0, highest: -1, looks: true };
        Table { rules: [rule; APIS], tracked: Topics::default(), version: 1 }
    }

    pub fn change(&mut self, change: Change) {
        self.rules = change.rules;
        for name in change.left.names {
            self.tracked.names.remove(&name);
        }
        for id in change.left.ids {
            self.tracked.ids.remove(&id);
        }
        if !change.joined.names.is_empty() || !change.joined.ids.is_empty() {
            self.version += 1;
        }
        self.tracked.names.extend(change.joined.names);
        self.tracked.ids.extend(change.joined.ids);
    }

    fn rule(&self, api_key: i16) -> Option<&Rule> {
        self.rules.get(usize::try_from(api_key).ok()?)
    }

    pub fn looks(&self, api_key: i16) -> bool {
        self.rule(api_key).is_none_or(|rule| rule.looks)
    }

    /// What becomes of a request now. `produces`: of the connection, that Python has.
    pub fn way(&self, frame: &[u8], sessions: &mut Sessions, produces: u32) -> Way {
        let Some(head) = header(frame) else {
            return Way::Python { produce: false };
        };
        let produce = head.api_key == PRODUCE;
        let python = Way::Python { produce };
        let Some(rule) = self.rule(head.api_key) else { return python };
        if rule.treatment == Treatment::Python
            || !(rule.lowest..=rule.highest).contains(&head.api_version)
            || head.api_key == FETCH && head.api_version < FETCH_SINCE
        {
            return python;
        }
        if rule.treatment == Treatment::PassByTopics {
            if produce && produces > 0 {
                return python; // it waits for its turn, which Python knows
            }
            if !self.passes_by_topics(frame, &head, sessions) {
                return python;
            }
        }
        if produce {
            return match produce_acks(frame, &head) {
                None => python,
                Some(0) => Way::PassUnanswered,
                Some(_) => Way::Pass(head),
            };
        }
        Way::Pass(head)
    }

    fn passes_by_topics(&self, frame: &[u8], head: &Header, sessions: &mut Sessions) -> bool {
        let mut classic = true;
        let walked = named_topics(frame, head, &mut |key| classic &= !self.tracked.has(key));
        let Some(session) = walked else { return false };
        if !classic || session == NO_SESSION {
            return classic;
        }
        if session.epoch <= 0 {
            return false; // it opens a session, or ends one
        }
        let Some(known) = sessions.get_mut(&session.id) else { return false };
        if known.checked != self.version {
            if !known.topics.shares_none(&self.tracked) {
                return false;
            }
            known.checked = self.version;
        }
        // One that it did not have is Python's to add.
        let mut within = true;
        named_topics(frame, head, &mut |key| within &= known.topics.has(key));
        within
    }
}

/// A Fetch that passes asks for no more than may be taken: who is disconnected for an answer that
/// is too long would ask for the same again.
pub fn fetch_within(frame: &mut [u8], head: &Header, most: i32) {
    if head.api_key != FETCH {
        return;
    }
    if let Some(at) = fetch_most_at(frame, head) {
        let asked: [u8; 4] = frame[at..at + 4].try_into().unwrap_or([0; 4]);
        if i32::from_be_bytes(asked) > most {
            frame[at..at + 4].copy_from_slice(&most.to_be_bytes());
        }
    }
}
