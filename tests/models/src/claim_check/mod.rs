//! Claim checks: blobs that messages refer to, from their creation to their deletion.
//!
//! ```text
//! send        put blob ──► put message ─┬─ answered ──────────────────────────► acknowledged
//!                                       ├─ no answer ──► send again, with a blob of its own
//!                                       └─ certainly refused ──► delete the blob of this put
//! checkpoint  put blob ──► update message ─┬─ answered ──► delete the blob that it replaces
//!                                          ├─ refused in every try ──► delete the new blob
//!                                          └─ no answer in any try ──► uncertain: nothing is deleted
//! complete    delete message ──► delete its blobs            the job is done
//! dead        copy the blobs ──► put letter, with the copies ──► delete message ──► delete its blobs
//! redrive     copy the blobs ──► put message, with the copies ──► delete letter ──► delete its blobs
//! purge       delete letter ──► delete its blobs
//! sweep       both queues empty, seen twice ──► delete the blobs that were old before
//!
//! blob        ∙ ──► not yet referred to ──► of one message or letter ──► that is deleted ──► ∙
//!                          └──────────────────────┴── nobody knows ──► swept after its grace ──► ∙
//! ```
//!
//! | property | invariant |
//! |---|---|
//! | [`NO_MISSING_BLOB`] | I15, I12a: no message and no letter whose job is not done refers to a blob that is missing |
//! | [`NO_ORPHAN`] | I15: once the job has ended and the grace is over, a sweep leaves no blob |
//!
//! The model has one job, its sender, two workers, a redrive, a purge and a sweeper.

mod operator;
mod sender;
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
    /// Broken: the message is put first.
    MessageBeforeBlob,
    /// Broken: an operation that was refused in its last attempt counts as refused. A resend refers to the blob of
    /// the first.
    LastErrorDecides,
    /// Broken: a resend refers to the blob of the first, and the message that counts as a duplicate deletes it.
    DuplicateDeletesBlob,
    /// Broken: a letter refers to the blobs of its message, which may still exist.
    LetterSharesBlobs,
    /// Broken: a redriven job refers to the blobs of its letter, which may still exist.
    RedriveSharesBlobs,
    /// Broken: nobody sweeps.
    NeverSwept,
    /// Broken: blobs are swept by their age alone.
    SweptByAge,
}

/// One job, two workers, a redrive, a purge, a sweeper, and a bounded number of faults.
#[derive(Debug)]
pub struct ClaimCheck {
    /// The design to check.
    pub design: Design,
    /// The faults that may happen.
    pub faults: Faults,
    is_stored: bool,
    recovered: Recovered,
}

impl ClaimCheck {
    /// Returns the model of a design under these faults.
    pub fn new(design: Design, faults: Faults) -> Self {
        Self { design, faults, is_stored: false, recovered: Recovered::default() }
    }

    /// Begins when the message is stored, so that faults occur afterwards.
    #[must_use]
    pub fn of_a_stored_message(mut self) -> Self {
        self.is_stored = true;
        self
    }
}

/// Property; see the table of this module.
pub const NO_MISSING_BLOB: &str = "no job that is not done lacks a blob";
/// Property; see the table of this module.
pub const NO_ORPHAN: &str = "nothing is left after the grace";

impl Model for ClaimCheck {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![if self.is_stored { State::stored(self.faults) } else { State::new(self.faults) }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        state.sender_actions(actions);
        state.worker_actions(actions);
        state.operator_actions(self.design, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        next.apply(action, self.design);
        next.normalise();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NO_MISSING_BLOB, |_, state: &State| state.has_all_blobs()),
            Property::always(NO_ORPHAN, Self::recovers),
            Property::sometimes("the job is done", |_, state: &State| state.done),
        ]
    }
}

impl Recovers for ClaimCheck {
    fn fair_action(&self, state: &State) -> Option<Action> {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        // A sweep runs when there is nothing else to do.
        let fair = |action: &Action| action.is_fair() && self.next_state(state, *action).is_some();
        actions.into_iter().filter(fair).min_by_key(|action| matches!(action, Action::Age | Action::Sweep))
    }

    fn is_settled(&self, state: &State) -> bool {
        state.is_settled()
    }

    fn recovered(&self) -> &Recovered {
        &self.recovered
    }
}
