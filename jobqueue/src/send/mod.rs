//! Sends messages.
//!
//! ```text
//! SendRequest ─► Draft (encoded) ─► Prepared (text, blob, position) ─► dispatch: blob, position, put ─► Sent
//! ```
//!
//! `request` collects the options, `prepare` encodes the message, `dispatch` and `many` store one message or
//! a list, and `put` retries after throttling and lost answers. `unique` sends one message for a key within a
//! window of time.

mod cancel;
mod clear;
mod dispatch;
mod groups;
mod history_reserve;
mod in_transaction;
mod many;
mod options;
mod prepare;
mod put;
mod request;
mod resend;
mod sent;
mod silence;
mod unique;

pub(crate) use dispatch::dispatch;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use dispatch::sent_in_transaction;
pub use in_transaction::TransactionSend;
pub use many::SendItem;
pub(crate) use many::dispatch_all;
pub use options::SendOptions;
pub(crate) use prepare::{
    Draft, Prepared, Purpose, Render, message_of, new_id, prepare, prepare_envelope, render_draft,
};
pub(crate) use put::send_error;
pub(crate) use request::ready_to_send;
pub use request::{All, One, SendFuture, SendRequest, Unique};
pub(crate) use resend::mark_copy;
pub use sent::{SendAnswers, Sent};
pub(crate) use unique::CONTAINER as UNIQUE;
pub use unique::SendUniqueOutcome;
