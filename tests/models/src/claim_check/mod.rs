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
//!                          └──────────────────────┴── orphaned ──► swept after its grace ──► ∙
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

use crate::check::{Bounded, Protocol};
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
    /// Broken: no process sweeps.
    NeverSwept,
    /// Broken: blobs are swept by their age alone.
    SweptByAge,
}

/// One job, two workers, a redrive, a purge, a sweeper, and a bounded number of faults.
pub type ClaimCheck = Bounded<State>;

/// Property; see the table of this module.
pub const NO_MISSING_BLOB: &str = "no job that is not done lacks a blob";
/// Property; see the table of this module.
pub const NO_ORPHAN: &str = "nothing is left after the grace";

impl Protocol for State {
    type Action = Action;
    type Design = Design;
    type Faults = Faults;

    fn begin(faults: Faults) -> Self {
        if faults.is_stored { Self::stored(faults) } else { Self::new(faults) }
    }

    fn next_actions(&self, design: Design, actions: &mut Vec<Action>) {
        self.sender_actions(actions);
        self.worker_actions(actions);
        self.operator_actions(design, actions);
    }

    fn step(&mut self, action: Action, design: Design) {
        self.apply(action, design);
        self.normalise();
    }

    fn properties() -> Vec<Property<ClaimCheck>> {
        vec![
            Property::always(NO_MISSING_BLOB, |_, state: &State| state.has_all_blobs()),
            Property::always(NO_ORPHAN, ClaimCheck::recovers),
            Property::sometimes("the job is done", |_, state: &State| state.done),
        ]
    }

    fn is_fair(action: Action) -> bool {
        action.is_fair()
    }

    fn has_ended(&self) -> bool {
        self.is_settled()
    }

    fn rank(&self, model: &ClaimCheck, action: Action) -> Option<u8> {
        let leads_on = action.is_fair() && model.next_state(self, action).is_some();
        // A sweep runs when there is nothing else to do.
        leads_on.then(|| u8::from(matches!(action, Action::Age | Action::Sweep)))
    }
}
