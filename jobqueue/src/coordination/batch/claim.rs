//! The turn among several messages of one child, or of the continuation.
//!
//! A send whose answer is lost makes a second message. So does a continuation that two children send
//! concurrently. The first copy delivered runs. Other copies *wait*. A copy is not deleted for coming second,
//! because the first copy may have been dead-lettered by hand, or may be the same message under the id that
//! another handle of the storage gives it. Only the record that the child is done ends a copy.
//!
//! A copy that is put back increments a counter in the claim; the running copy resets the counter with its
//! heartbeat. A copy that was put back four times without a heartbeat, which takes one to four minutes, takes
//! the turn over.
//!
//! The first delivery of a child's first message makes no claim before its first heartbeat: most children
//! have ended by then. A message that may be the second has a header that says so. If it finds no claim, it
//! waits for the first message as if that were running, and takes the turn over in the same time. If the
//! first message is delivered only then, it loses its lease at its first heartbeat. Children whose dead
//! letters count as ended have no such header, and all of their messages make their claims immediately: only
//! the message that has the turn can fail the child.
//!
//! The messages of a job in order make no claims where a log keeps the order: the log gives the turn to one
//! message, and takes it away. Claims and the log would otherwise deadlock over one turn.
//!
//! | claim | the first message is delivered | a copy is delivered | heartbeat of the running message | the running message is dead-lettered |
//! |---|---|---|---|---|
//! | none | runs, → its own if it may have run before | waits for the first message: → *of the first message* | → its own, at the first heartbeat | – |
//! | of the first message, which has made no claim | → its own | waits; after four waits → its own | → its own | – |
//! | of a message | runs if it is the same message, else waits; after four waits → its own | as the first message | → its own, without waits; another's: loses its lease | → free |
//! | free | → its own | → its own | keeps its turn | – |

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::json_blob::Edit;
use crate::storage::MessageId;

/// The delay of a copy whose first delivery is put back while another copy runs.
pub(super) const FIRST_COPY_DELAY: Duration = Duration::from_secs(5);
/// The number of the delivery from which this delay no longer grows.
const MAX_DELAY_STEPS: u32 = 12;
/// The number of waits without a heartbeat after which a copy takes the turn over. A count and not a time,
/// because the clocks of several machines may differ.
const MAX_SILENT_WAITS: u32 = 4;

/// The holder of a claim that a copy has made for the first message of the child, which may run without a
/// claim.
const FIRST_MESSAGE: &str = "";

/// The record of the message that has the turn.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claim {
    /// The id of the message that has the turn; `None` if that message was dead-lettered.
    message: Option<String>,
    /// The number of times that each other copy was put back since the last heartbeat.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    waits: BTreeMap<String, u32>,
}

impl Claim {
    fn of(message: &str) -> Self {
        Self { message: Some(message.to_owned()), ..Self::default() }
    }

    /// Returns whether `message` may take the turn immediately.
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

    /// Records a heartbeat of `message`, which makes its claim unless `is_claimed`. Returns whether the
    /// message has the turn.
    pub(super) fn heartbeat(found: Option<Self>, message: &MessageId, is_claimed: bool) -> Edit<Self, bool> {
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

    /// Ends the turn of `message`, if the message has the turn.
    pub(super) fn end(found: Option<Self>, message: &MessageId) -> Edit<Self, ()> {
        match found.and_then(|claim| claim.message) {
            Some(holder) if holder == message.as_str() => Edit::Write(Self::default(), ()),
            _ => Edit::Keep(()),
        }
    }
}

/// The decision about a delivery that asks for the turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// The delivery runs, and no other delivery has made a claim before.
    First,
    /// The delivery runs; another delivery may have had the turn before.
    Again,
    /// Another copy has the turn; this delivery is put back for this time.
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

    /// Returns the claim after a delivery, and the decision about the delivery.
    fn take(found: Option<Claim>, message: &str, delivery: u32) -> (Option<Claim>, Turn) {
        match Claim::take(found.clone(), &MessageId::new(message), delivery, message == COPY) {
            Edit::Write(claim, turn) => (Some(claim), turn),
            Edit::Keep(turn) => (found, turn),
        }
    }

    /// Returns the claim after a heartbeat, and whether the message has the turn.
    fn heartbeat(found: Option<Claim>, message: &str, is_claimed: bool) -> (Option<Claim>, bool) {
        match Claim::heartbeat(found.clone(), &MessageId::new(message), is_claimed) {
            Edit::Write(claim, has_turn) => (Some(claim), has_turn),
            Edit::Keep(has_turn) => (found, has_turn),
        }
    }

    #[test]
    fn free_turn_goes_to_the_delivered_message() {
        assert_eq!(take(None, FIRST, 1), (of(FIRST), Turn::First));
        assert_eq!(take(of(FIRST), FIRST, 2), (of(FIRST), Turn::Again));
        assert_eq!(take(of(FIRST_MESSAGE), FIRST, 1), (of(FIRST), Turn::Again));
        for message in [FIRST, COPY] {
            assert_eq!(take(Some(Claim::default()), message, 1), (of(message), Turn::Again));
        }
    }

    #[test]
    fn copy_waits_four_times_without_a_heartbeat() {
        for found in [None, of(FIRST_MESSAGE), of(FIRST)] {
            let mut claim = found;
            for delivery in 1..=MAX_SILENT_WAITS {
                let (waiting, turn) = take(claim, COPY, delivery);
                assert_eq!(turn, Turn::Wait(FIRST_COPY_DELAY * delivery));
                claim = waiting;
            }
            // A first message without a claim makes it now.
            let (renewed, has_turn) = heartbeat(claim.clone(), FIRST, false);
            assert!(has_turn);
            assert_eq!(renewed, of(FIRST), "the waits are cleared");
            assert_eq!(take(claim, COPY, 5), (of(COPY), Turn::Again));
        }
    }

    #[test]
    fn heartbeat_after_another_copy_took_over_finds_the_turn_lost() {
        assert_eq!(heartbeat(None, FIRST, false), (of(FIRST), true));
        assert_eq!(heartbeat(of(COPY), FIRST, false), (of(COPY), false));
        assert_eq!(heartbeat(of(COPY), FIRST, true), (of(COPY), false));
        // The batch was swept, or the child dead-lettered by hand: no new claim is made.
        assert_eq!(heartbeat(None, FIRST, true), (None, true));
        assert_eq!(heartbeat(Some(Claim::default()), FIRST, true), (Some(Claim::default()), true));
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
