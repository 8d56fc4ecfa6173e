//! FIFO groups: the record of a key is written before the message.
//!
//! The storage promises no order. A record holds the order of a key: a blob with conditional writes, with an entry for
//! each job. An entry names its job by source, id and payload digest, and the send that
//! announced it by a nonce.
//!
//! ```text
//! send     announce(nonce) ──► put message ──► confirm(nonce) ──► acknowledged
//!                               └─ refused in every try ──► revoke(nonce) ──► refused
//! worker   lease ──► stand ─┬─ first ──► handler ──► entry out, into `done` ──► delete message
//!                           ├─ not first, or another copy has the turn ──► put back
//!                           └─ job done or cancelled ──► delete message
//! dead     record the attempt ──► copy to the dead-letter queue ──► entry out ──► delete message
//! redrive  lease letter ──► announce(nonce) ──► put message ──► confirm(nonce) ──► delete letter
//! cancel   mark ──► delete the message if it was never received ──► entry out, into `cancelled`; or unmark
//!
//!                announce          confirm, or a worker has the message
//!           ∙ ────────────► announced ────────────────────► stored ──── done, dead ────► ∙
//!                             │    ▲                          │  ▲                       ▲
//!                   time over │    │ announced again          │  │ unmark,               │
//!                             ▼    │ (at the tail)       mark │  │ a worker has it       │
//!                            skipped ──────────────────────►──┼──┤ the message           │
//!                             ▲   confirm, or a worker has    ▼  │                       │
//!                             │   the message (at the tail)  cancelling ─── cancelled ───┘
//!                             └───────────── time over ───────┘
//! ```
//!
//! Time proves nothing here: the model lets it pass at every moment. A skipped entry loses only its position, which is
//! not promised before the confirmation; a stored entry is never skipped.
//!
//! | property | invariant |
//! |---|---|
//! | [`NOTHING_SWALLOWED`] | I1, I12a: an acknowledged job is in the queue, in the dead-letter queue, done, or cancelled |
//! | [`ORDER`] | what FIFO groups add to I1: of two jobs, the second sent after the first was acknowledged, the first runs first |
//! | [`REFUSED`] | I3, I4: a refused send is not stored, and a cancelled job does not run |
//! | [`NO_WAIT`] | I12b: whatever has happened, all that waits is run once faults end, and no entry is left without its message |
//!
//! The model has two jobs of one key, each with its sender, two workers and a redrive. It has neither `clear` nor a time to live.

mod record;
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
    /// Broken: the message is put first, and its position written afterwards.
    MessageBeforeRecord,
    /// Broken: an announcement is removed when its time is over, and the send is acknowledged because its put was.
    RemovedByTime,
    /// Broken: the entry is bound to the storage's identity of the message, which another handle spells differently.
    MatchedByMessageId,
    /// Broken: of two copies, the one that was not elected is deleted.
    OtherCopyAbsorbs,
    /// Broken: a sender confirms the entry of its job even if another one announced it.
    ConfirmByIdentity,
    /// Broken: a job counts as cancelled when its message is deleted, whatever the record says.
    CancelByDeletion,
}

/// Two senders, two workers, a redrive, and a bounded number of faults.
pub type GroupRecord = Bounded<State>;

/// Property; see the table of this module.
pub const NOTHING_SWALLOWED: &str = "no acknowledged job is swallowed";
/// Property; see the table of this module.
pub const ORDER: &str = "acknowledged sends run in their order";
/// Property; see the table of this module.
pub const REFUSED: &str = "what was refused or cancelled never runs";
/// Property; see the table of this module.
pub const NO_WAIT: &str = "no key waits for ever";

impl Protocol for State {
    type Action = Action;
    type Design = Design;
    type Faults = Faults;

    fn begin(faults: Faults) -> Self {
        Self::new(faults)
    }

    fn next_actions(&self, design: Design, actions: &mut Vec<Action>) {
        self.sender_actions(design, actions);
        self.worker_actions(actions);
        self.redrive_actions(actions);
        if self.record.overdue().is_some() {
            actions.push(Action::TimeOut);
        }
        if self.in_flight.iter().any(Option::is_some) {
            actions.push(Action::Arrive);
        }
    }

    fn step(&mut self, action: Action, design: Design) {
        self.apply(action, design);
        self.normalise(design);
    }

    fn properties() -> Vec<Property<GroupRecord>> {
        vec![
            Property::always(NOTHING_SWALLOWED, |_, state: &State| {
                (0..2).all(|job| state.is_accounted_for(job))
            }),
            Property::always(ORDER, |_, state: &State| !state.disorder),
            Property::always(REFUSED, |_, state: &State| {
                !state.refused_ran && (0..2).all(|job| state.is_not_stored_if_refused(job))
            }),
            Property::always(NO_WAIT, GroupRecord::recovers),
            Property::sometimes("all run", |_, state: &State| {
                (0..usize::from(state.faults.jobs)).all(|job| state.record.done[job])
            }),
        ]
    }

    fn is_fair(action: Action) -> bool {
        action.is_fair()
    }

    fn has_ended(&self) -> bool {
        self.is_settled()
    }

    fn rank(&self, model: &GroupRecord, action: Action) -> Option<u8> {
        match action {
            // Putting a message back leads nowhere.
            Action::Lease(w, _) => {
                let leased = model.next_state(self, action)?;
                let stood = model.next_state(&leased, Action::Worker(w))?;
                (stood.workers[w].is_some() || stood.record != self.record).then_some(1)
            }
            // The maximum wait of a key.
            Action::TimeOut => Some(2),
            _ if action.is_fair() => model.next_state(self, action).map(|_| 0),
            _ => None,
        }
    }
}
