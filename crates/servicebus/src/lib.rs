//! Azure Service Bus: queues of a namespace, combined with the blobs of another storage.
//!
//! [`Options`] sets the namespace and its key, and combines its queues with the blobs of a storage account,
//! of a SQLite file or of memory, which store large payloads, leases of leaders, batches and queue metadata.
//! AMQP 1.0 is implemented by the crate `fe2o3-amqp`; none of its types are part of this module's interface.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use jobqueue::{Storage, servicebus};
//!
//! let blobs = Storage::connect("sqlite:blobs.db").await?;
//! let options = servicebus::Options::from_connection_string(
//!     "Endpoint=sb://my-namespace.servicebus.windows.net/;SharedAccessKeyName=jobs;SharedAccessKey=…",
//! )?;
//! let storage = Storage::from(options.with_blobs_of(&blobs)?);
//! # Ok(()) }
//! ```
//!
//! The service differs from the port's contract:
//! - **A lock has the length of its queue** (`LockDuration`, at most 5 minutes), whatever the caller asks
//!   for. The answer to a get or a renewal contains the granted time, which leases use.
//! - **A renewal keeps its token**: the receipt before it stays valid.
//! - **A text cannot change under a lock.** A checkpoint is written to a blob, on condition that the lock is
//!   held and that no later delivery has written there; the next delivery reads it. A message that is given
//!   back with a new text or a delay is replaced by a copy, even if its link has ended: in one transaction
//!   where the tier has them. Otherwise the copy is sent first, and a crash between the two leaves both. A
//!   queue that accepts no sends keeps the message, with its text and the end of its delay in a blob.
//! - **The receipt of a put** cancels a delayed message until its delay is over. A message without a delay
//!   cannot be cancelled.
//! - **A peek** shows leased messages as well; **clearing a queue** leaves leased messages.
//! - **Times** are the service's, to a second: each answer of the management API over HTTPS has its time,
//!   also a refusal. A process that gets no answer, at first or since its clock was set, counts delays, times
//!   to live and the rest of locks by its own clock. The service alone says when a message without a delay
//!   was inserted.
//! - **An expired lock** is refused, whatever [`ExpiredReceipt`](jobqueue_storage::ExpiredReceipt) says.
//!
//! Dead letters are in the dead-letter queue that the service has for each queue, with their reason and
//! description, where other tools see them. A message moves there by one settlement. A dead-letter queue
//! accepts no sends. The name `<queue>-poison` denotes it, and a queue whose own name ends in `-poison`
//! cannot be used.
//!
//! In a queue that requires sessions, a worker holds a session for each slot, and gets one message of a
//! session at a time, so a get may return fewer messages than are visible. A message that is given back stays
//! the first of its session. A session ends with its link; its receipts are then refused as expired, which
//! does not show the state of the message.
//!
//! The page *Service Bus* of the guide of `jobqueue` describes all this for users and operators.
//!
//! # What this crate knows
//! The port of `jobqueue-storage`, AMQP and Service Bus. It does not know the messages, typed queues and
//! workers of `jobqueue`, nor which storage has the blobs. The crate `jobqueue` re-exports it as
//! `jobqueue::servicebus` (feature `servicebus`).

#![forbid(unsafe_code)]

mod amqp;
mod cache;
mod clock;
mod connection_string;
mod deliveries;
mod entity;
mod error;
mod held;
mod network;
mod options;
mod place;
mod queue;
mod sas;
mod secret;
mod session;
mod settings;
mod texts;
mod tls;
mod token;

/// The `azure_core` version whose credentials [`Options`] accepts.
pub use azure_core;

#[doc(hidden)]
pub use network::{Answer, Network, Request, Socket};
pub use options::Options;
