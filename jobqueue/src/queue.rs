//! Typed queues: send messages, receive messages by hand, cancel jobs, and read dead letters.
//!
//! [`Storage::queue`](crate::Storage::queue) opens a [`Queue`]. [`Queue::send`] returns a [`SendRequest`],
//! which collects options and sends when it is awaited. A [`Worker`](crate::Worker) is the usual receiver;
//! [`Queue::receive`] returns a [`Delivery`] to programs that receive by hand.
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

pub use crate::queue_core::Queue;
pub use crate::receive::{Backlog, Delivery};
pub use crate::send::{
    All, One, SendAnswers, SendFuture, SendItem, SendOptions, SendRequest, SendUniqueOutcome, Sent,
    TransactionSend, Unique,
};
