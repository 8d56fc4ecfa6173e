//! The backlog of a queue, and producers that wait for it to shrink.

use std::time::Duration;

use crate::error::Error;
use crate::message::QueueMessage;
use crate::queue_core::{Queue, wait_until_below};
use crate::queue_reading::QueueReading;
use crate::storage::StateCounts;

/// The backlog of a queue: its length and its age, by which workers are scaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backlog {
    /// The approximate number of messages, invisible messages included, as [`Queue::approximate_len`] returns
    /// it.
    pub length: u64,
    /// The time since the oldest receivable message became due, by the storage's clock. Azure Storage and
    /// Service Bus do not list every message: there it is the time since the oldest of the next 32 visible
    /// messages was inserted. `None` if no message can be received or the age is unknown: on Service Bus, more
    /// delayed messages than the 400 that a peek reads may precede the message, and a storage may not return
    /// its time.
    pub oldest: Option<Duration>,
}

impl<M: QueueMessage> Queue<M> {
    /// Returns the approximate number of messages, invisible messages included; never 0 while the queue has
    /// messages. SQLite counts them on a separate thread, and estimates how many of more than about 130,000
    /// messages can be received, as a rule to within a tenth. The other storages count, and never return less than the real
    /// number; PostgreSQL reads all messages of the queue to count them.
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the storage fails.
    pub async fn approximate_len(&self) -> Result<u64, Error> {
        Ok(self.core().store().queue_properties(&self.core().name).await?.approximate_count)
    }

    /// Returns the numbers of messages that are waiting, delayed, backing off and running. `None` if the
    /// storage cannot tell them apart: SQLite, PostgreSQL and memory can; Azure Storage and Service Bus
    /// cannot.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::{QueueMessage, Storage}; use serde::{Deserialize, Serialize}; use std::time::Duration;
    /// # #[derive(Serialize, Deserialize, QueueMessage)]
    /// # #[message(queue = "mails", kind = "mail")] struct Mail { to: String }
    /// # let mails = Storage::memory().queue::<Mail>().await?;
    /// # let mail = Mail { to: "ada@example.org".into() };
    /// mails.send(&mail).await?;
    /// mails.send(&mail).delay(Duration::from_secs(60)).await?;
    /// if let Some(counts) = mails.counts_by_state().await? {
    ///     println!("{} wait, {} run", counts.waiting, counts.running);
    /// #   assert_eq!((counts.waiting, counts.delayed, counts.total()), (1, 1, 2));
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the storage fails.
    pub async fn counts_by_state(&self) -> Result<Option<StateCounts>, Error> {
        Ok(self.core().store().counts_by_state(&self.core().name).await?)
    }

    /// Returns whether the queue has no messages, invisible messages included.
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the storage fails.
    pub async fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.approximate_len().await? == 0)
    }

    /// Returns the length and the age of the queue, as operators see them. Costs three requests, on SQLite,
    /// PostgreSQL and in memory five, and leases nothing.
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the storage fails.
    pub async fn backlog(&self) -> Result<Backlog, Error> {
        let QueueReading { length, oldest, .. } =
            QueueReading::take(&self.core().storage, &self.core().name).await?;
        Ok(Backlog { length: length?, oldest })
    }

    /// Waits until the queue has fewer than `mark` messages, and returns their number. Reads the length at
    /// once, then after pauses that double from 100 ms to 5 seconds. A mark of 0 counts as 1.
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the storage fails with an error that is not retryable. After
    /// a retryable error the call continues to wait.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing. Set a limit with `tokio::time::timeout`.
    pub async fn wait_until_below(&self, mark: u64) -> Result<u64, Error> {
        wait_until_below(self.core(), mark).await
    }
}
