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

use stateright::{Model, Property};

use crate::check::{Recovered, Recovers};
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
#[derive(Debug)]
pub struct DeadLetters {
    /// The design to check.
    pub design: Design,
    /// The faults that may happen.
    pub faults: Faults,
    recovered: Recovered,
}

impl DeadLetters {
    /// Returns the model of a design under these faults.
    pub fn new(design: Design, faults: Faults) -> Self {
        Self { design, faults, recovered: Recovered::default() }
    }
}

/// Property; see the table of this module.
pub const NEVER_IN_NEITHER: &str = "no job is in neither queue";
/// Property; see the table of this module.
pub const ONLY_WHAT_IT_PUT_BACK: &str = "a redrive deletes only what it put back";
/// Property; see the table of this module.
pub const PAYLOAD_STAYS: &str = "the payload is there for every job that is not done";
/// Property; see the table of this module.
pub const ALL_END: &str = "redriven jobs end";

impl Model for DeadLetters {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.faults)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        state.worker_actions(actions);
        state.redrive_actions(actions);
        state.purge_actions(actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        next.apply(action, self.design);
        next.normalise();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NEVER_IN_NEITHER, |_, state: &State| (0..2).all(|job| state.is_kept(job))),
            Property::always(ONLY_WHAT_IT_PUT_BACK, |_, state: &State| !state.deleted_unproven),
            Property::always(PAYLOAD_STAYS, |_, state: &State| (0..2).all(|job| state.has_payload(job))),
            Property::always(ALL_END, Self::recovers),
            Property::sometimes("both are done", |_, state: &State| state.done == [true; 2]),
        ]
    }
}

impl Recovers for DeadLetters {
    fn fair_action(&self, state: &State) -> Option<Action> {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        actions.into_iter().find(|action| action.is_fair() && self.next_state(state, *action).is_some())
    }

    fn is_settled(&self, state: &State) -> bool {
        let empty = state.queue.iter().all(Option::is_none) && state.letters.iter().all(Option::is_none);
        empty && (0..2).all(|job| state.done[job] || state.purged[job])
    }

    fn recovered(&self) -> &Recovered {
        &self.recovered
    }
}
