//! Sends the continuation.
//!
//! A child that sees its batch complete deletes its own message only after the continuation was certainly sent. The
//! continuation is put twice if the process dies between the two steps here, or if two children end at once. Its
//! copies have the same id and take turns like those of a child.

use sha2::{Digest, Sha256};

use super::ledger::Ledger;
use crate::error::Error;
use crate::send;
use crate::settings::Metadata;
use crate::storage::QueueName;
use crate::storage::{PutMessage, StoreError, StoreErrorKind as K};
use jobqueue_storage::fast::hex::to_hex;

impl Ledger<'_> {
    /// Sends the continuation, unless it was certainly sent. Creates its queue if it was deleted.
    ///
    /// # Errors
    /// The storage failed. The continuation may have been sent; the next delivery sends it again.
    pub(super) async fn proceed(&self) -> Result<(), Error> {
        let sent = self.id.blob("sent")?;
        if self.read::<bool>(&sent).await?.is_some() {
            return Ok(());
        }
        let Some(plan) = self.plan().await? else { return Ok(()) };
        self.put(&QueueName::new(&plan.queue)?, &plan.text).await?;
        self.create(&sent, &true).await.map(drop)
    }

    async fn put(&self, queue: &QueueName, text: &str) -> Result<(), StoreError> {
        let queues = self.storage.queues();
        match queues.put(queue, self.message(queue, text).await?).await {
            Err(e) if e.kind() == K::QueueNotFound => {
                queues.create_queue(queue, &Metadata::new()).await?;
                queues.put(queue, self.message(queue, text).await?).await.map(drop)
            }
            answer => answer.map(drop),
        }
    }

    async fn message(&self, queue: &QueueName, text: &str) -> Result<PutMessage, StoreError> {
        let message = send::message_of(self.storage.queues(), queue, text).await?;
        // The id of the job alone is that of the batch, and a later batch may have the id of a former one: their plans differ.
        let plan = to_hex(&Sha256::digest(text)[..8]);
        Ok(message.with_job(self.id.as_str(), format!("then {plan}")))
    }
}
