//! Azure Service Bus: queues of a namespace, with the blobs of another storage.
//!
//! [`Options`] sets the namespace and its key, and joins its queues with the blobs of a storage account, of a SQLite file
//! or of memory: large payloads, leases of leaders, batches and the settings of the queues are there. The crate
//! `fe2o3-amqp` speaks AMQP 1.0; none of its types are part of this module's interface.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use jobqueue::{Storage, servicebus};
//!
//! let blobs = Storage::connect("sqlite:blobs.db").await?;
//! let options = servicebus::Options::from_connection_string(
//!     "Endpoint=sb://my-namespace.servicebus.windows.net/;SharedAccessKeyName=jobs;SharedAccessKey=…",
//! )?;
//! let storage = options.storage(&blobs)?;
//! # Ok(()) }
//! ```
//!
//! The service differs from the contract of the port in this:
//! - **A lock has the length of its queue** (`LockDuration`, at most 5 minutes), whatever the caller asks for. The answer to a get
//!   or a renewal tells the time that was granted, and leases go by it.
//! - **A renewal keeps its token**: the receipt before it stays valid.
//! - **A text cannot change under a lock.** A checkpoint is written to a blob beside the queue, on condition that the lock is
//!   held and that no later delivery has written there; the next delivery reads it. A message that is given back with a
//!   new text or a delay is replaced by a copy, in one transaction where the tier has them; else the copy comes first,
//!   and a crash between the two leaves both.
//! - **The receipt of a put** cancels a delayed message until its delay is over. A message without a delay can be cancelled by
//!   nobody.
//! - **A peek** shows leased messages as well; **clearing a queue** leaves leased messages.
//! - **An expired lock** is refused, whatever [`ExpiredReceipt`](crate::storage::ExpiredReceipt) says.
//! - Delays need the tier Standard or Premium.
//!
//! A put carries the job's identity as `message-id`, so that a queue with duplicate detection keeps one message of a send that
//! was repeated after a lost answer.
//!
//! Dead letters are in the dead-letter queue that the service has for each queue, with their reason and description, so that
//! other tools see them; those that the service moves there itself (`MaxDeliveryCountExceeded`, `TTLExpiredException`) are listed,
//! redriven and purged like all others. A message moves there by one settlement. Nothing can be put into it: the name
//! `<queue>-poison` stands for it, and a queue of the service with such a name of its own cannot be used.
//!
//! **Messages are pushed.** A get asks for as many messages as there are free slots. When it finds none, the service keeps that credit
//! while a worker waits, and a message comes at once; nothing is requested meanwhile. A message that comes when its slot was taken by another
//! queue goes back after a second.
//!
//! **Sessions.** In a queue that requires sessions, the service keeps the order of jobs that are sent
//! [in order](crate::SendOptions::in_order): their key is the session, and the framework writes no record of the order. A job without an order has a
//! session of its own, named by its id. Such a queue differs further:
//! - A worker holds a session for each slot, and gets one message of a session at a time. A get may return fewer messages than are
//!   visible.
//! - A message that is given back stays the first of its session. With a delay, this process holds the session until the delay is
//!   over; after a crash, the next holder does.
//! - A session ends with its link. Its receipts are then refused as expired, which says nothing about the message; the lease is told at once.
//! - The service does not count a delivery that ended with its link. Each delivery writes its number to a blob beside the queue.
//!
//! **Networks that block port 5671** let AMQP pass through WebSocket: [`Options::web_socket`], or `TransportType=AmqpWebSockets` in the string.

mod amqp;
mod connection_string;
mod deliveries;
mod entity;
mod error;
mod held;
#[cfg(feature = "testing")]
mod network;
mod options;
mod place;
mod queue;
mod sas;
mod session;
mod settings;
mod texts;
mod tls;
mod token;

#[cfg(feature = "testing")]
pub use amqp::Socket;
#[cfg(feature = "testing")]
pub use network::{Answer, Network, Request};
pub use options::Options;
