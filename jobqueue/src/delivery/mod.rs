//! One delivery: a leased message until its end.
//!
//! ```text
//!                 executor ──────────────────────────────────────────────────────────────────────────┐
//!  Incoming ──► decode ──► LeasedJob ──► admit ──► RunnableJob ──► run ──► Disposition ──► settle ──► DeliveryReport
//!               (lease)                    │ done before? hooks, limits  │ handler          │  completion: alone, or with others
//!                                          └── Disposition ─────────────┴──────────────────┘
//! ```
//!
//! The worker passes a message with a [slot](DeliverySlot) and a token, and gets a [`DeliveryReport`]. A
//! [`Disposition`] names the end of the delivery; `settle` performs it. Programs that receive by hand use the
//! same steps without a handler. This module knows no worker.
//!
//! A job passes through these files from its fetch to its report: `worker/poller`, `worker/deliveries`,
//! `executor`, `decode`, `leased_job`, `admit`, `run`, `handler/erased`, `disposition`, `settle`,
//! `completion`, `lease/together` (or `lease/removal`, where messages are deleted individually). The other
//! files serve the jobs that need them:
//! - before the handler: `receipt_times`, `done` (was the job completed before?), `hooks`, `deferral` (waits
//!   for a condition), `order_position` (FIFO groups);
//! - during the handler: `context`, `progress`, `checkpoint`, `durable` (steps and effects),
//!   `in_transaction`;
//! - at the end: `handler_output` (kept for hooks), `message_changes` (put-backs), `dead_letter`,
//!   `dead_envelope`, `shrink_history`.

mod admit;
mod checkpoint;
mod claimed_letter;
mod completed;
mod completion;
mod context;
mod dead_envelope;
mod dead_letter;
mod dead_letter_hook;
mod decode;
mod deferral;
mod disposition;
mod done;
mod durable;
mod executor;
mod handler_output;
mod hook;
mod hooks;
#[cfg_attr(
    not(all(feature = "postgres", feature = "sqlite")),
    allow(dead_code, reason = "only in a database a transaction can complete a job, and each has its way")
)]
mod in_transaction;
mod leased_job;
mod message_changes;
mod order_position;
mod past_dead_letters;
mod progress;
mod receipt_times;
mod registry;
mod run;
mod settle;
mod shrink_history;
mod slot;
mod state;

pub(crate) use checkpoint::to_json;
pub(crate) use claimed_letter::{LetterClaim, StoredLetter, claim_letter, record_redrive, was_redriven};
pub(crate) use completion::Deletions;
pub use context::Context;
pub(crate) use dead_envelope::{DeathOf, events};
pub use dead_envelope::{UNREADABLE_SOURCE, unwrap_unreadable};
pub(crate) use dead_letter::dead_letter_by_hand;
pub use dead_letter_hook::DeadLettered;
pub use decode::discard_forged_history;
pub(crate) use decode::{Incoming, Kinds, decode, event_of_raw, inspect};
pub(crate) use deferral::{DeferOutcome, DeferralCause, defer};
pub(crate) use disposition::{Disposition, NotRun, Rejection};
pub(crate) use durable::COMPLETED;
pub(crate) use executor::{DeliveryReport, Executor};
pub(crate) use handler_output::HandlerOutput;
pub(crate) use hook::{AdmissionContext, Hook, HookAnswer, HookContext, JobEnd};
pub(crate) use leased_job::LeasedJob;
pub(crate) use order_position::{MAX_UNLOGGED_DELAY, end_turn, is_done_in_order, keep_expected, position_of};
pub(crate) use past_dead_letters::add_past_dead_letter;
pub use past_dead_letters::{PastDeadLetter, past_dead_letters};
pub use progress::CheckpointOutcome;
pub(crate) use progress::{load_saved, save_progress};
pub(crate) use registry::{QueueHandlers, Registry};
pub(crate) use shrink_history::fit_shortened;
pub(crate) use slot::{DeliverySlot, MessageClass};
pub(crate) use state::{DeliveryOptions, DeliveryState, Snooze};
