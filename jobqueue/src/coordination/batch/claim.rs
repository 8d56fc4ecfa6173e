//! The turn among several messages of one child, or of the continuation.
//!
//! A send whose answer is lost makes a second message. So does a continuation that two children send at once. The
//! first copy delivered runs. Other copies *wait*; none is deleted for not being the first, because the first may
//! have been dead-lettered by hand, or may be the same message under the id that another handle of the storage gives
//! it. Only the record that the child is done ends a copy.
//!
//! A copy that is put back increments a counter in the claim; the running one resets it at intervals. A copy that was put back four times
//! without such a sign of life, which takes one to four minutes, takes the turn over.
//!
//! The first delivery of a child's first message makes no claim before its first sign of life: most children have ended by then. A message
//! that may be the second says so in a header. If it finds no claim, it waits for the first message as for one that runs, and takes the
//! turn over in the same time. A first message that is delivered only then loses its lease at its first sign of life. Children whose dead
//! letters count as ended have no such header, and all of their messages make their claims at once: only the one that has the turn can fail
//! the child.
//!
//! The messages of a job in order make no claims where a log keeps the order: the log gives the turn to one of them, and takes it away. Two
//! records of one turn would hold each other up.
//!
//! | claim | the first message comes | a copy comes | sign of life of the one that runs | it is dead-lettered |
//! |---|---|---|---|---|
//! | none | runs, → its own if it may have run before | waits for the first message: → *of the first message* | → its own, at its first one | – |
//! | of the first message, which has made none | → its own | waits; after four waits → its own | → its own | – |
//! | of a message | runs if it is the same one, else waits; after four waits → its own | as the first message | → its own, without waits; another's: loses its lease | → free |
//! | free | → its own | → its own | keeps its turn | – |

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::json_blob::Edit;
use crate::storage::MessageId;

/// The delay of a copy that is put back for the first time while another one runs.
pub(super) const FIRST_COPY_DELAY: Duration = Duration::from_secs(5);
/// The delivery from which this delay no longer grows.
const MAX_DELAY_STEPS: u32 = 12;
/// The number of waits without a sign of life after which a copy takes the turn over. A count, because the clocks of several machines
/// may differ.
const MAX_SILENT_WAITS: u32 = 4;

/// The holder of a claim that a copy has made: the first message of the child, which may run without one.
const FIRST_MESSAGE: &str = "";

/// The record of the copy that runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claim {
    /// The copy's message; `None` if it was dead-lettered.
    message: Option<String>,
    /// The number of times that each other copy was put back since the last sign of life.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    waits: BTreeMap<String, u32>,
}

impl Claim {
    fn of(message: &str) -> Self {
        Self { message: Some(message.to_owned()), ..Self::default() }
    }

    /// Returns whether `message` may take the turn at once.
    pub(super) fn is_free_for(&self, message: &MessageId, is_copy: bool) -> bool {
        match self.message.as_deref() {
            Some(FIRST_MESSAGE) => !is_copy,
            holder => holder.is_none_or(|holder| holder == message.as_str()),
        }
    }

    /// Gives the turn to delivery number `delivery` of `message`, unless another copy has it.
    pub(super) fn take(
        found: Option<Self>,
        message: &MessageId,
        delivery: u32,
        is_copy: bool,
    ) -> Edit<Self, Turn> {
        let turn = if found.is_none() { Turn::First } else { Turn::Again };
        let unclaimed = || if is_copy { Self::of(FIRST_MESSAGE) } else { Self::default() };
        let (own, mut claim) = (Self::of(message.as_str()), found.unwrap_or_else(unclaimed));
        if claim == own {
            return Edit::Keep(Turn::Again);
        }
        if claim.is_free_for(message, is_copy) {
            return Edit::Write(own, turn);
        }
        let waits = claim.waits.entry(message.as_str().to_owned()).or_default();
        if *waits >= MAX_SILENT_WAITS {
            return Edit::Write(own, Turn::Again);
        }
        *waits += 1;
        Edit::Write(claim, Turn::Wait(FIRST_COPY_DELAY * delivery.min(MAX_DELAY_STEPS)))
    }

    /// Gives the sign of life of `message`, which makes its claim unless it `is_claimed`. Returns whether it has the turn.
    pub(super) fn keep(found: Option<Self>, message: &MessageId, is_claimed: bool) -> Edit<Self, bool> {
        let own = Self::of(message.as_str());
        match found {
            None if !is_claimed => Edit::Write(own, true),
            Some(found) if found.message.is_some() && found != own => {
                if found.is_free_for(message, false) {
                    Edit::Write(own, true)
                } else {
                    Edit::Keep(false)
                }
            }
            // The child was dead-lettered by hand, or the batch swept.
            _ => Edit::Keep(true),
        }
    }

    /// Ends the turn of `message`, if it has it.
    pub(super) fn end(found: Option<Self>, message: &MessageId) -> Edit<Self, ()> {
        match found.and_then(|claim| claim.message) {
            Some(holder) if holder == message.as_str() => Edit::Write(Self::default(), ()),
            _ => Edit::Keep(()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// The copy runs, and no other delivery has made a claim before.
    First,
    /// The copy runs; another delivery may have had a turn before.
    Again,
    /// Another copy runs; this one is put back for this time.
    Wait(Duration),
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "first";
    const COPY: &str = "copy";

    fn of(message: &str) -> Option<Claim> {
        Some(Claim::of(message))
    }

    /// Returns the claim after a delivery, and the turn that it has got.
    fn take(found: Option<Claim>, message: &str, delivery: u32) -> (Option<Claim>, Turn) {
        match Claim::take(found.clone(), &MessageId::new(message), delivery, message == COPY) {
            Edit::Write(claim, turn) => (Some(claim), turn),
            Edit::Keep(turn) => (found, turn),
        }
    }

    /// Returns the claim after a sign of life, and whether the message has the turn.
    fn keep(found: Option<Claim>, message: &str, is_claimed: bool) -> (Option<Claim>, bool) {
        match Claim::keep(found.clone(), &MessageId::new(message), is_claimed) {
            Edit::Write(claim, kept) => (Some(claim), kept),
            Edit::Keep(kept) => (found, kept),
        }
    }

    #[test]
    fn free_turn_goes_to_the_message_that_comes() {
        assert_eq!(take(None, FIRST, 1), (of(FIRST), Turn::First));
        assert_eq!(take(of(FIRST), FIRST, 2), (of(FIRST), Turn::Again));
        assert_eq!(take(of(FIRST_MESSAGE), FIRST, 1), (of(FIRST), Turn::Again));
        for message in [FIRST, COPY] {
            assert_eq!(take(Some(Claim::default()), message, 1), (of(message), Turn::Again));
        }
    }

    #[test]
    fn copy_waits_four_times_without_a_sign_of_life() {
        for found in [None, of(FIRST_MESSAGE), of(FIRST)] {
            let mut claim = found;
            for delivery in 1..=MAX_SILENT_WAITS {
                let (waiting, turn) = take(claim, COPY, delivery);
                assert_eq!(turn, Turn::Wait(FIRST_COPY_DELAY * delivery));
                claim = waiting;
            }
            // Without a claim of its own, the first message makes it now.
            let (kept, has_turn) = keep(claim.clone(), FIRST, false);
            assert!(has_turn);
            assert_eq!(kept, of(FIRST), "the waits are struck out");
            assert_eq!(take(claim, COPY, 5), (of(COPY), Turn::Again));
        }
    }

    #[test]
    fn sign_of_life_behind_another_copy_has_lost_the_turn() {
        assert_eq!(keep(None, FIRST, false), (of(FIRST), true));
        assert_eq!(keep(of(COPY), FIRST, false), (of(COPY), false));
        assert_eq!(keep(of(COPY), FIRST, true), (of(COPY), false));
        // The batch was swept, or the child dead-lettered by hand: nothing is claimed anew.
        assert_eq!(keep(None, FIRST, true), (None, true));
        assert_eq!(keep(Some(Claim::default()), FIRST, true), (Some(Claim::default()), true));
    }

    #[test]
    fn only_the_message_that_has_the_turn_ends_it() {
        let end = |found| Claim::end(found, &MessageId::new(FIRST));
        assert!(matches!(end(of(FIRST)), Edit::Write(free, ()) if free == Claim::default()));
        for other in [None, of(COPY), of(FIRST_MESSAGE), Some(Claim::default())] {
            assert!(matches!(end(other), Edit::Keep(())));
        }
    }
}
