//! Azure Service Bus: queues of a namespace, with the blobs of another storage.
//!
//! [`Options`] sets the namespace and its key, and joins its queues with the blobs of a storage account, of a SQLite file
//! or of memory: large payloads, leases of leaders, batches and the settings of the queues are there. AMQP 1.0 is
//! implemented by the crate `fe2o3-amqp`; none of its types are part of this module's interface.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use jobqueue::{Storage, servicebus};
//!
//! let blobs = Storage::connect("sqlite:blobs.db").await?;
//! let options = servicebus::Options::from_connection_string(
//!     "Endpoint=sb://my-namespace.servicebus.windows.net/;SharedAccessKeyName=jobs;SharedAccessKey=…",
//! )?;
//! let storage = Storage::from(options.with_blobs_of(&blobs));
//! # Ok(()) }
//! ```
//!
//! The service differs from the port's contract:
//! - **A lock has the length of its queue** (`LockDuration`, at most 5 minutes), whatever the caller asks for. The
//!   answer to a get or a renewal contains the granted time, which leases use.
//! - **A renewal keeps its token**: the receipt before it stays valid.
//! - **A text cannot change under a lock.** A checkpoint is written to a blob beside the queue, on condition that the lock is
//!   held and that no later delivery has written there; the next delivery reads it. A message that is given back with a
//!   new text or a delay is replaced by a copy, in one transaction where the tier has them, whatever became of its link;
//!   otherwise the copy is sent first, and a crash between the two leaves both.
//! - **The receipt of a put** cancels a delayed message until its delay is over. A message without a delay cannot be
//!   cancelled.
//! - **A peek** shows leased messages as well; **clearing a queue** leaves leased messages.
//! - **An expired lock** is refused, whatever [`ExpiredReceipt`](jobqueue_storage::ExpiredReceipt) says.
//! - Delays need the tier Standard or Premium.
//!
//! A put carries the job's identity as `message-id`, so that a queue with duplicate detection keeps one message of a send that
//! was repeated after a lost answer.
//!
//! Dead letters are in the dead-letter queue that the service has for each queue, with their reason and description, so that
//! other tools see them; messages that the service moves there itself (`MaxDeliveryCountExceeded`,
//! `TTLExpiredException`) are listed, redriven and purged like all others. A message moves there by one settlement. It
//! accepts no sends. The name `<queue>-poison` denotes it, and a queue whose own name ends in `-poison` cannot be used.
//!
//! **Messages are pushed.** A get asks for as many messages as there are free slots. When it finds none, the service
//! keeps that credit while a worker waits, and delivers a message at once, without further requests. A message whose
//! slot was taken by another queue is released after a second.
//!
//! **Sessions.** In a queue that requires sessions, the service keeps the order of jobs that are sent
//! in order (`SendOptions::in_order`): their key is the session, and the framework writes no record of the order. A job without an order has a
//! session of its own, named by its id. Such a queue differs further:
//! - A worker holds a session for each slot, and gets one message of a session at a time. A get may return fewer messages than are
//!   visible.
//! - A message that is given back stays the first of its session. With a delay, this process holds the session until the delay is
//!   over; after a crash, the next holder does.
//! - A session ends with its link. Its receipts are then refused as expired, which says nothing about the message; the
//!   lease is notified at once.
//! - The service does not count a delivery that ended with its link. Each delivery writes its number to a blob beside the queue.
//!
//! **Networks that block port 5671** let AMQP pass through WebSocket: [`Options::web_socket`], or `TransportType=AmqpWebSockets` in the string.
//!
//! # What this crate knows
//! The port of `jobqueue-storage`, AMQP and Service Bus. It knows nothing of messages, queues of types and workers, nor which storage has the blobs;
//! the crate `jobqueue` re-exports it as `jobqueue::servicebus` (feature `servicebus`).

#![forbid(unsafe_code)]

mod amqp;
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

#[doc(hidden)]
pub use network::{Answer, Network, Request, Socket};
pub use options::Options;
