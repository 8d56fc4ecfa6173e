//! Who comes first: plain data, without I/O.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::queue::unreceived::{Unreceived, millis};
use crate::storage::MessageRef;

/// Lines of a queue. Keys whose hashes begin alike share one: more lines, less contention and shorter blobs.
pub(super) const LINES: u16 = 4096;
/// The most places of a line.
pub(super) const MAX_PLACES: usize = 20_000;
/// How many jobs of a line are remembered as done: a message that was not deleted, or a second copy, is known by it.
const MAX_DONE: usize = 256;
/// How long whoever takes a message back has before others finish it: longer than it is tried.
const CANCELLATION_PERIOD: Duration = Duration::from_secs(45);

/// A message of a job, as it asks for its turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket<'a> {
    pub(crate) key: &'a str,
    pub(crate) job: &'a str,
    /// The storage's identity of the message: another one for a second copy of the job.
    pub(crate) message: &'a str,
    /// The dequeue count, which grows with every delivery; a former delivery can end nothing.
    pub(crate) delivery: u32,
}

/// Where a message stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is its turn.
    First,
    /// So many of its key are before it.
    Behind(usize),
    /// The first of its key was to be taken back, and whoever began that has died.
    BehindWithdrawn(PendingCancellation),
    /// Its job is done, or another message of it counts.
    Over,
    /// A newer delivery of the message has its turn.
    Superseded,
    /// The line is full.
    Full,
}

/// A message that was to be taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PendingCancellation {
    pub(crate) job: String,
    pub(crate) message: MessageRef,
}

impl PendingCancellation {
    /// Nobody has received it: no delivery of it is newer.
    pub(crate) fn ticket<'a>(&'a self, key: &'a str) -> Ticket<'a> {
        Ticket { key, job: &self.job, message: self.message.id.as_str(), delivery: u32::MAX }
    }
}

/// The places of some keys, first come first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Line {
    places: Vec<Place>,
    /// Jobs that are done and whose messages may come back; newest last.
    #[serde(default)]
    done: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    key: String,
    job: String,
    message: String,
    /// The newest delivery that was given its turn, if not the first.
    #[serde(default)]
    delivery: u32,
    /// While the message is being taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cancellation: Option<Cancellation>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Cancellation {
    message: Unreceived,
    /// From when on others may finish it, in milliseconds since 1970.
    until: u64,
}

/// The number of a key's line, and the key within it. Keys themselves are not written.
pub(super) fn address(key: &str) -> (u16, String) {
    let digest = Sha256::digest(key.as_bytes());
    let line = u16::from_be_bytes([digest[0], digest[1]]) % LINES;
    (line, digest[2..14].iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Line {
    /// Gives a job a place at the end, unless it has one or is done. False if there is no room. A message that is being taken
    /// back has none that counts: another of its job was sent since.
    pub(super) fn join(&mut self, ticket: &Ticket<'_>) -> bool {
        self.places.retain(|place| {
            place.cancellation.is_none() || place.job != ticket.job || place.message == ticket.message
        });
        if self.done.iter().any(|job| job == ticket.job) || self.place(ticket.job).is_some() {
            return true;
        }
        if self.places.len() >= MAX_PLACES {
            return false;
        }
        let (_, key) = address(ticket.key);
        let (job, message) = (ticket.job.to_owned(), ticket.message.to_owned());
        self.places.push(Place { key, job, message, delivery: 0, cancellation: None });
        true
    }

    /// Whose turn it is; gives the message a place if it has none.
    pub(super) fn stand(&mut self, ticket: &Ticket<'_>, now: SystemTime) -> Standing {
        if self.done.iter().any(|job| job == ticket.job) {
            return Standing::Over;
        }
        if !self.join(ticket) {
            return Standing::Full;
        }
        let Some(at) = self.place(ticket.job) else { return Standing::Full };
        let place = &self.places[at];
        if place.message != ticket.message {
            return Standing::Over;
        }
        if place.delivery > ticket.delivery {
            return Standing::Superseded;
        }
        // It was received, so that it cannot be taken back any more.
        self.places[at].cancellation = None;
        let mut before = self.places[..at].iter().filter(|other| other.key == self.places[at].key);
        if let Some(first) = before.next() {
            return match &first.cancellation {
                Some(cancellation) if cancellation.until <= millis(now) => {
                    Standing::BehindWithdrawn(PendingCancellation {
                        job: first.job.clone(),
                        message: cancellation.message.message(),
                    })
                }
                _ => Standing::Behind(1 + before.count()),
            };
        }
        // Of first deliveries there is only one: its turn need not be written down.
        if ticket.delivery > 1 {
            self.places[at].delivery = ticket.delivery;
        }
        Standing::First
    }

    /// The job is done. False if a newer delivery has its turn.
    pub(super) fn finish(&mut self, ticket: &Ticket<'_>) -> bool {
        let left = self.leave(ticket);
        if left && !self.done.iter().any(|job| job == ticket.job) {
            self.done.push(ticket.job.to_owned());
            let excess = self.done.len().saturating_sub(MAX_DONE);
            self.done.drain(..excess);
        }
        left
    }

    /// The message is to be moved elsewhere, or was taken back. False if a newer delivery has its turn.
    pub(super) fn leave(&mut self, ticket: &Ticket<'_>) -> bool {
        let Some(at) = self.place(ticket.job) else { return true };
        let place = &self.places[at];
        if place.message == ticket.message && place.delivery > ticket.delivery {
            return false;
        }
        if place.message == ticket.message {
            self.places.remove(at);
        }
        true
    }

    /// The message is about to be taken back: should whoever does it die, the next of the key finishes it.
    pub(super) fn begin_cancellation(&mut self, ticket: &Ticket<'_>, message: &MessageRef, now: SystemTime) {
        let cancellation = Cancellation { message: message.into(), until: millis(now + CANCELLATION_PERIOD) };
        if let Some(place) = self.own_place(ticket) {
            place.cancellation = Some(cancellation);
        }
    }

    /// The message was not taken back.
    pub(super) fn keep(&mut self, ticket: &Ticket<'_>) {
        if let Some(place) = self.own_place(ticket) {
            place.cancellation = None;
        }
    }

    fn own_place(&mut self, ticket: &Ticket<'_>) -> Option<&mut Place> {
        self.places.iter_mut().find(|place| place.job == ticket.job && place.message == ticket.message)
    }

    fn place(&self, job: &str) -> Option<usize> {
        self.places.iter().position(|place| place.job == job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{MessageId, PopReceipt};

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn ticket<'a>(key: &'a str, job: &'a str, delivery: u32) -> Ticket<'a> {
        Ticket { key, job, message: job, delivery }
    }

    #[test]
    fn one_of_a_key_has_its_turn_and_the_next_when_it_is_done() {
        let mut line = Line::default();
        assert!(line.join(&ticket("a", "1", 0)) && line.join(&ticket("a", "2", 0)));
        assert_eq!(line.stand(&ticket("a", "2", 1), NOW), Standing::Behind(1));
        assert_eq!(line.stand(&ticket("b", "3", 1), NOW), Standing::First);
        assert_eq!(line.stand(&ticket("a", "1", 1), NOW), Standing::First);
        assert!(line.finish(&ticket("a", "1", 1)));
        assert_eq!(line.stand(&ticket("a", "1", 2), NOW), Standing::Over, "done, and delivered again");
        assert_eq!(line.stand(&ticket("a", "2", 2), NOW), Standing::First);
    }

    #[test]
    fn a_former_delivery_ends_nothing() {
        let mut line = Line::default();
        assert_eq!(line.stand(&ticket("a", "1", 1), NOW), Standing::First);
        assert_eq!(line.stand(&ticket("a", "1", 2), NOW), Standing::First);
        assert!(!line.finish(&ticket("a", "1", 1)) && !line.leave(&ticket("a", "1", 1)));
        assert_eq!(line.stand(&ticket("a", "1", 1), NOW), Standing::Superseded);
        assert!(line.finish(&ticket("a", "1", 2)));
    }

    /// A write whose answer was lost is made again, and a message that waits looks again.
    #[test]
    fn a_delivery_that_asks_again_is_told_the_same_and_only_a_second_one_is_written_down() {
        let mut line = Line::default();
        assert!(line.join(&ticket("a", "1", 0)));
        let joined = line.clone();
        for delivery in [1, 1, 2, 2] {
            assert_eq!(line.stand(&ticket("a", "1", delivery), NOW), Standing::First);
            assert_eq!(line == joined, delivery == 1);
        }
    }

    #[test]
    fn keys_share_all_lines() {
        let lines: std::collections::BTreeSet<u16> = (0..50_000).map(|n| address(&n.to_string()).0).collect();
        assert!(lines.len() > usize::from(LINES) * 9 / 10 && lines.iter().all(|line| *line < LINES));
    }

    #[test]
    fn of_two_messages_of_a_job_one_counts() {
        let mut line = Line::default();
        let copy = Ticket { message: "copy", ..ticket("a", "1", 1) };
        assert_eq!(line.stand(&ticket("a", "1", 1), NOW), Standing::First);
        assert_eq!(line.stand(&copy, NOW), Standing::Over);
        assert!(line.leave(&copy));
        assert_eq!(line.stand(&ticket("a", "1", 2), NOW), Standing::First, "the copy's end is not the job's");
    }

    fn message(job: &str) -> MessageRef {
        MessageRef { id: MessageId::new(job), receipt: PopReceipt::new("first") }
    }

    #[test]
    fn what_nobody_went_on_taking_back_is_left_to_the_next_when_its_time_is_over() {
        let mut line = Line::default();
        assert!(line.join(&ticket("a", "1", 0)) && line.join(&ticket("b", "2", 0)));
        line.begin_cancellation(&ticket("a", "1", u32::MAX), &message("1"), NOW);
        assert_eq!(line.stand(&ticket("a", "3", 1), NOW), Standing::Behind(1));
        let later = NOW + CANCELLATION_PERIOD;
        let pending = PendingCancellation { job: "1".to_owned(), message: message("1") };
        let text = serde_json::to_string(&line).unwrap();
        let mut line: Line = serde_json::from_str(&text).unwrap();
        assert_eq!(line.stand(&ticket("a", "3", 1), later), Standing::BehindWithdrawn(pending.clone()));
        assert_eq!(line.stand(&ticket("b", "4", 1), later), Standing::Behind(1), "another key");
        let mut kept = line.clone();
        kept.keep(&pending.ticket("a"));
        assert_eq!(kept.stand(&ticket("a", "3", 1), later), Standing::Behind(1));
        assert!(line.leave(&pending.ticket("a")));
        assert_eq!(line.stand(&ticket("a", "3", 1), later), Standing::First);
        assert!(!format!("{line:?} {pending:?}").contains("first"), "receipts are secret");
    }

    #[test]
    fn who_has_received_a_message_keeps_it_from_being_taken_back() {
        let mut line = Line::default();
        line.join(&ticket("a", "1", 0));
        line.begin_cancellation(&ticket("a", "1", u32::MAX), &message("1"), NOW);
        assert_eq!(line.stand(&ticket("a", "1", 1), NOW), Standing::First);
        assert_eq!(line.stand(&ticket("a", "2", 1), NOW + CANCELLATION_PERIOD), Standing::Behind(1));
    }

    #[test]
    fn a_message_that_is_being_taken_back_gives_its_place_to_a_new_one_of_its_job() {
        let mut line = Line::default();
        let again = Ticket { message: "again", ..ticket("a", "1", 1) };
        assert!(line.join(&ticket("a", "1", 0)) && line.join(&ticket("a", "2", 0)));
        line.begin_cancellation(&ticket("a", "1", u32::MAX), &message("1"), NOW);
        line.begin_cancellation(&again, &message("again"), NOW);
        assert!(line.join(&again));
        assert_eq!(line.stand(&again, NOW), Standing::Behind(1), "it is the last of its key");
        assert_eq!(line.stand(&ticket("a", "1", 1), NOW), Standing::Over);
        assert!(line.leave(&PendingCancellation { job: "1".to_owned(), message: message("1") }.ticket("a")));
        assert_eq!(line.stand(&again, NOW), Standing::Behind(1), "it stays");
        let before = line.clone();
        line.begin_cancellation(&ticket("a", "1", u32::MAX), &message("1"), NOW);
        assert_eq!(line, before, "a message without a place marks no other's");
    }

    #[test]
    fn a_line_has_bounds() {
        let mut line = Line::default();
        for job in 0..MAX_PLACES {
            assert!(line.join(&ticket("a", &job.to_string(), 0)));
        }
        assert!(!line.join(&ticket("a", "more", 0)));
        assert!(line.join(&ticket("a", "0", 0)), "who has a place keeps it");
        assert_eq!(line.stand(&ticket("a", "more", 1), NOW), Standing::Full);
        for job in 0..2 * MAX_DONE {
            assert!(line.finish(&ticket("a", &job.to_string(), 1)));
        }
        assert_eq!(line.done.len(), MAX_DONE);
    }
}
