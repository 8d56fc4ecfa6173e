//! Typed queues: send messages, receive them by hand, cancel jobs, and read dead letters.
//!
//! [`Storage::queue`](crate::Storage::queue) opens a [`Queue`]. [`Queue::send`] returns a [`SendRequest`], which collects
//! options and sends when it is awaited. A [`Worker`](crate::Worker) is the usual receiver; [`Queue::receive`] returns a
//! [`Delivery`] to programs that receive by hand.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use jobqueue::{QueueMessage, Storage}; use serde::{Deserialize, Serialize}; use std::time::Duration;
//! # #[derive(Serialize, Deserialize, QueueMessage)]
//! # #[message(queue = "mails", kind = "mail")] struct Mail { to: String }
//! let mails = Storage::memory().queue::<Mail>().await?;
//! let sent = mails.send(&Mail { to: "ada@example.org".into() }).delay(Duration::from_secs(60)).await?;
//! assert!(mails.cancel(&sent).await?);
//! # Ok(()) }
//! ```

mod backlog;
mod blobs;
mod dead_letter;
pub(crate) mod dead_letters;
mod decode;
mod deferral;
mod delivery;
mod errors;
mod history;
mod history_trim;
mod kept_text;
mod leased_job;
mod native_dead_letter;
mod prepare;
mod progress;
mod put;
mod queue_core;
mod read;
mod receive;
mod request;
mod resend;
mod room;
mod send;
mod send_all;
mod send_groups;
mod send_options;
mod settings;
mod settle;
pub(crate) mod trace;
mod typed;
mod unique;
mod unreceived;
#[cfg(feature = "testing")]
mod virtual_time;

pub use backlog::Backlog;
pub use delivery::Delivery;
pub use request::{All, One, SendFuture, SendRequest, Unique};
pub use send::Sent;
pub use send_all::SendItem;
pub use send_options::SendOptions;
pub use typed::Queue;
pub use unique::SendUniqueOutcome;

#[cfg(feature = "schedule")]
pub(crate) use dead_letter::is_waiting;
pub(crate) use dead_letter::unwrap_unreadable;
pub(crate) use dead_letter::{DEAD_LETTER_RETRY, dead_letter, record_end, record_end_for_others};
pub(crate) use dead_letters::past_dead_letters;
pub(crate) use dead_letters::{DeadLetterQueue, PassAction};
pub(crate) use decode::{Decoded, Incoming, Kinds, Rejection, decode, lease_only};
pub(crate) use deferral::{Cause, Deferred, defer, note_running};
pub(crate) use delivery::{from_json, to_json};
pub(crate) use kept_text::message_of;
pub(crate) use leased_job::LeasedJob;
#[cfg(feature = "sqlite")]
pub(crate) use prepare::Prepared;
pub(crate) use prepare::{Draft, Purpose, new_id, prepare, prepare_envelope, render_draft};
pub(crate) use progress::{load_saved, read_stored_checkpoint, save_progress, save_step};
pub(crate) use queue_core::{QueueCore, QueueCoreOptions};
pub(crate) use read::payload_error;
#[cfg(feature = "testing")]
pub(crate) use read::read_text;
pub(crate) use receive::Idle;
pub(crate) use send::dispatch;
#[cfg(feature = "sqlite")]
pub(crate) use send::sent_in_transaction;
pub(crate) use send_all::dispatch_all;
#[cfg(feature = "sqlite")]
pub(crate) use unique::send_unique_exclusively;
pub(crate) use unique::{CONTAINER as UNIQUE, send_unique};
pub(crate) use unreceived::{Stored, Unreceived, delete_unreceived};

pub(crate) use crate::envelope::{EventDigest, Identity, IdentityDigest};
