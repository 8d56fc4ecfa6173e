//! Dead letters and their redrive: always copy, then delete.
//!
//! ```text
//! worker   lease ─┬─► handler ── succeeds ──► delete message ──► delete payload
//!                 │      └────── fails for good ──► record attempt and occurrence in the message ─┐
//!                 └─ failed for good before ──────────────────────────────────────────────────────┤
//!                                                                                                 ▼
//!                                              delete message ◄── put the letter into the dead-letter queue
//!
//! redrive  lease letter ─┬─ put back before by this redrive ────────────────────────► delete letter
//!                        └─► put message into the home queue ──► remember occurrence ──► delete letter
//!
//! purge    lease letter ──► delete letter                  the payload stays: another copy may need it
//! ```
//!
//! A process may die, an answer may be lost and a lease may end between any two steps. Two letters are duplicates
//! only if source, id, kind, key, payload *and* occurrence are equal. The occurrence is the number of the
//! dead-lettering, which is in the message before it is copied. The two jobs of the model have the same id from
//! different sources.
//!
//! | property | invariant |
//! |---|---|
//! | [`NEVER_IN_NEITHER`] | I12, I1: a job is in the queue, in the dead-letter queue, done, or purged |
//! | [`ONLY_WHAT_IT_PUT_BACK`] | I12: a redrive never deletes what was dead-lettered after it began |
//! | [`PAYLOAD_STAYS`] | I12a, I15: the payload is there for every message and letter whose job is not done |
//! | [`ALL_END`] | I12b, I13: whatever has happened, redriven jobs are done once faults end, and both queues are empty |

mod redrive;
mod state;
mod worker;

use stateright::Property;

use crate::check::{Bounded, Protocol};
pub use state::Faults;
use state::{Action, State};

/// The protocol, or one of its broken variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Design {
    /// The protocol as it is built.
    Good,
    /// Broken: the message is deleted before it is copied.
    DeleteBeforeCopy,
    /// Broken: of two letters with the same id, a redrive deletes the second.
    DuplicatesById,
    /// Broken: a redrive deletes the letter before it puts the message back.
    DeleteBeforePutBack,
    /// Broken: a purge deletes the payload of the letter.
    PurgeDeletesPayload,
}

/// Two jobs, two workers, a redrive, a purge, and a bounded number of faults.
pub type DeadLetters = Bounded<State>;

/// Property; see the table of this module.
pub const NEVER_IN_NEITHER: &str = "no job is in neither queue";
/// Property; see the table of this module.
pub const ONLY_WHAT_IT_PUT_BACK: &str = "a redrive deletes only what it put back";
/// Property; see the table of this module.
pub const PAYLOAD_STAYS: &str = "the payload is there for every job that is not done";
/// Property; see the table of this module.
pub const ALL_END: &str = "redriven jobs end";

impl Protocol for State {
    type Action = Action;
    type Design = Design;
    type Faults = Faults;

    fn begin(faults: Faults) -> Self {
        Self::new(faults)
    }

    fn next_actions(&self, _: Design, actions: &mut Vec<Action>) {
        self.worker_actions(actions);
        self.redrive_actions(actions);
        self.purge_actions(actions);
    }

    fn step(&mut self, action: Action, design: Design) {
        self.apply(action, design);
        self.normalise();
    }

    fn properties() -> Vec<Property<DeadLetters>> {
        vec![
            Property::always(NEVER_IN_NEITHER, |_, state: &State| (0..2).all(|job| state.is_kept(job))),
            Property::always(ONLY_WHAT_IT_PUT_BACK, |_, state: &State| !state.deleted_unproven),
            Property::always(PAYLOAD_STAYS, |_, state: &State| (0..2).all(|job| state.has_payload(job))),
            Property::always(ALL_END, DeadLetters::recovers),
            Property::sometimes("both are done", |_, state: &State| state.done == [true; 2]),
        ]
    }

    fn is_fair(action: Action) -> bool {
        action.is_fair()
    }

    fn has_ended(&self) -> bool {
        let empty = self.queue.iter().all(Option::is_none) && self.letters.iter().all(Option::is_none);
        empty && (0..2).all(|job| self.done[job] || self.purged[job])
    }
}
