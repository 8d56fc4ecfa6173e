//! Batches: a ledger records the members of a batch and those that have ended; one continuation follows.
//!
//! ```text
//! fan-out   plan (names of all children) ──► send each child ──► seal (the continuation) ──► check
//! child     lease ──► handler ──► marker `done` ──► check ──► delete message
//!                 └─ marker is `done` already ─────► check ──► delete message
//! dead      record the attempt ──► copy to the dead-letter queue ──► marker `dead(occurrence)` ──► delete message
//! redrive   lease letter ──► marker `reopened(occurrence)` ──► put message ──► delete letter
//!                        └─ marker is `done` ─────────────────────────────────► delete letter
//!
//! check     all named children done, and sealed? ─ no ──► nothing follows
//!            │ yes
//!            ├─ `sent` is written ────────────────────► nothing follows
//!            ├─ another one claims it ────────────────► put the message back, and come again
//!            └─ claim ──► put continuation ──► write `sent`
//!
//! marker       ∙ ──► dead(1) ──► reopened(1) ──► dead(2) ──► …        dead(n) after reopened(n) changes nothing
//!              └────────┴─────────────┴────────────┴──────► done      final
//! ```
//!
//! A name is the child's index and a digest of its identity and payload. A message that only claims to be a child is
//! none.
//!
//! | property | invariant |
//! |---|---|
//! | [`NOT_BEFORE`] | the promise of batches: the continuation is not put before every named child is done |
//! | [`NEVER_MISSING`] | I12b: whatever has happened, a sealed batch continues and all of its jobs end once faults end |
//! | [`NOTHING_LOST`] | I1, I12, I12a: a child that was sent is in the queue, in the dead-letter queue or done; so is the continuation |
//! | [`WITH_A_CAUSE`] | I2: the continuation is put again only after a lost answer, a lost claim or the death of a process |
//!
//! The model has two children, a message that only claims to be one, two workers and a redrive. Dead letters of
//! children make the batch wait (`OnDeadLetters::Wait`).

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
    /// Broken: the names of the children are written after all of them are sent.
    ChildrenBeforePlan,
    /// Broken: markers are counted, whatever child they name.
    Counting,
    /// Broken: one message of a child is elected, and the end of another one counts as the child's.
    DuplicateMarks,
    /// Broken: one message of a child is elected, and another one is deleted.
    DuplicateAbsorbed,
    /// Broken: a child that ends checks the others, continues the batch, and writes its own marker afterwards.
    ContinuationBeforeMarker,
    /// Broken: a child that finds that another one has claimed the continuation deletes its own message.
    TrustsClaim,
    /// Broken: every child that finds the batch complete puts the continuation.
    NoClaim,
}

/// A fan-out of two, two workers, a redrive, and a bounded number of faults.
pub type BatchLedger = Bounded<State>;

/// Property; see the table of this module.
pub const NOT_BEFORE: &str = "the continuation comes after all children";
/// Property; see the table of this module.
pub const NEVER_MISSING: &str = "a sealed batch continues";
/// Property; see the table of this module.
pub const NOTHING_LOST: &str = "no child and no continuation is lost";
/// Property; see the table of this module.
pub const WITH_A_CAUSE: &str = "the continuation is put again only with a cause";

impl Protocol for State {
    type Action = Action;
    type Design = Design;
    type Faults = Faults;

    fn begin(faults: Faults) -> Self {
        Self::new(faults)
    }

    fn next_actions(&self, _: Design, actions: &mut Vec<Action>) {
        self.fan_out_actions(actions);
        self.worker_actions(actions);
        self.redrive_actions(actions);
    }

    fn step(&mut self, action: Action, design: Design) {
        self.apply(action, design);
        self.normalise();
    }

    fn properties() -> Vec<Property<BatchLedger>> {
        vec![
            Property::always(NOT_BEFORE, |_, state: &State| state.puts == 0 || state.done == [true; 2]),
            Property::always(NEVER_MISSING, BatchLedger::recovers),
            Property::always(NOTHING_LOST, |_, state: &State| state.is_nothing_lost()),
            Property::always(WITH_A_CAUSE, |model: &BatchLedger, state: &State| {
                state.puts <= 1 + state.faults.causes_until(&model.faults)
            }),
            Property::sometimes("the continuation runs", |_, state: &State| state.continued),
        ]
    }

    fn is_fair(action: Action) -> bool {
        action.is_fair()
    }

    fn has_ended(&self) -> bool {
        self.is_settled()
    }

    fn rank(&self, model: &BatchLedger, action: Action) -> Option<u8> {
        match action {
            // Putting a message back leads nowhere.
            Action::Lease(w, _) => {
                let leased = model.next_state(self, action)?;
                let admitted = model.next_state(&leased, Action::Worker(w))?;
                admitted.workers.iter().any(Option::is_some).then_some(2)
            }
            Action::ClaimEnds => (!self.claimant_works()).then_some(1),
            _ if action.is_fair() => model.next_state(self, action).map(|_| 0),
            _ => None,
        }
    }
}
