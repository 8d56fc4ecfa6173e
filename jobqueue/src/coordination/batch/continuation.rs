//! Seals a batch with its continuation, and sends the continuation.
//!
//! The message of the child that completes the batch is deleted only after the continuation was certainly
//! sent. The continuation is put twice if the process dies between the put and its record, or if two children
//! end concurrently. Its copies have the same id and take turns like the copies of a child.

use futures_util::future::BoxFuture;

use super::claimed::ClaimedChild;
use super::ledger::{Ledger, Plan};
use super::names::{BATCH, BatchId, CONTINUATION, INDEX, OF, OF_TOKEN, ON_DEAD, TOKEN, token};
use super::sweep::job_digest;
use super::{Batch, source};
use crate::error::{Error, ErrorKind};
use crate::job::JobInfo;
use crate::queue_core::{QueueCore, create_queue};
use crate::send;
use crate::send::{Prepared, SendOptions};
use crate::storage::{PutMessage, QueueName, StoreError, StoreErrorKind as K};

/// The place of a job in the batch of which it is a child.
pub(super) struct Outer<'b> {
    ledger: Ledger<'b>,
    index: u64,
    secret: String,
    /// The child's policy about dead letters, in the form of its header.
    on_dead: String,
    /// The batch that the job continues, if it is a continuation.
    from: Option<String>,
}

impl Batch {
    /// Ends a start of a batch that had ended and was swept.
    async fn seal_swept(&self, outer: Option<&Outer<'_>>) -> Result<(), Error> {
        self.check_sealed(self.sealed.unwrap_or_default())?;
        // The batch ended the child that recorded it, and ends no other child.
        if let Some(Outer { ledger, index, .. }) = outer
            && !ledger.handovers(*index).await?.iter().any(|inner| inner == self.id.as_str())
        {
            let text = format!(
                "a job with this id has sent the batch `{}` before, which has ended and was swept; give the batch an id that is made from this job's message",
                self.id.as_str()
            );
            return Err(Error::new(ErrorKind::Conflict, text));
        }
        self.note_hand_over();
        Ok(())
    }

    pub(super) fn seal<'b>(
        &'b self,
        core: &'b QueueCore,
        prepared: Prepared,
        outer: Option<Outer<'b>>,
    ) -> BoxFuture<'b, Result<(), Error>> {
        Box::pin(async move {
            if prepared.blob.is_some() {
                let text =
                    "the continuation of a batch must fit into one message; store large data in a blob";
                return Err(Error::new(ErrorKind::TooLarge, text));
            }
            let (queue, text) = (core.name.to_string(), prepared.put.text);
            let plan = Plan { children: self.next, queue, text, job: self.sending_job() };
            let ledger = self.ledger();
            if self.is_swept {
                return self.seal_swept(outer.as_ref()).await;
            }
            ledger.check_announced(self.next).await?;
            if let Some(Outer { ledger, index, from, .. }) = &outer {
                // Recorded before the batch is sealed, so that a later attempt of the sending job knows that
                // its end was handed over.
                ledger.hand_over(*index, &self.id, from.as_deref()).await?;
            }
            ledger.seal(&plan).await?;
            // A sweep writes its tombstone before it removes the plan. Either this call reads the tombstone, or
            // the sweep sees that the batch has changed.
            if ledger.is_swept().await? {
                return Err(ledger.swept_during_start());
            }
            // The plan that was written first holds.
            let plan = ledger.plan().await?.unwrap_or(plan);
            if let Some(Outer { ledger, index, secret, .. }) = outer
                && !plan.ends_child(&ledger.id, index, &secret)
            {
                return Err(ledger.retract_handover(index, &self.id).await?);
            }
            self.check_sealed(plan.children)?;
            self.log_other_job(&plan);
            self.note_hand_over();
            ledger.complete_after_seal(&plan).await
        })
    }

    fn sending_job(&self) -> Option<String> {
        self.context.as_ref().map(|context| job_digest(context.info()))
    }

    /// Logs that this start has sent nothing, because another job had sent the same children under this id.
    fn log_other_job(&self, plan: &Plan) {
        if plan.job != self.sending_job() {
            let batch = self.id.as_str();
            crate::log::info!(%batch, "nothing is sent: the batch was sealed before by another job; another run needs an id of its own");
        }
    }

    /// Tells the context that another message ends the sending job.
    fn note_hand_over(&self) {
        if let Some(context) = &self.context {
            context.hand_over();
        }
    }

    /// Checks that the batch was sealed with as many children as this start has sent.
    fn check_sealed(&self, children: u64) -> Result<(), Error> {
        if children == self.next {
            return Ok(());
        }
        let text = format!(
            "the batch `{}` was sealed with {children} children, and now has {}; a restart must send the same",
            self.id.as_str(),
            self.next
        );
        Err(Error::new(ErrorKind::Conflict, text))
    }

    pub(super) fn continuation_options(&self, secret: &str, outer: Option<&Outer<'_>>) -> SendOptions {
        let (id, source) = (self.id.as_str(), source(secret));
        let own = token(secret, CONTINUATION, &source, id);
        let options = SendOptions::new().source(&*source).id(id).own_header(OF, id).own_header(OF_TOKEN, own);
        let Some(Outer { ledger, index, secret, on_dead, .. }) = outer else { return options };
        let index = index.to_string();
        let token = token(secret, &index, &source, id);
        options
            .own_header(BATCH, ledger.id.as_str())
            .own_header(INDEX, index)
            .own_header(ON_DEAD, on_dead)
            .own_header(TOKEN, token)
    }

    /// Returns the place of the sending job in the batch of which it is a child; the job hands the end of
    /// that child over to this batch.
    pub(super) async fn outer(&self) -> Result<Option<Outer<'_>>, Error> {
        let Some(context) = &self.context else { return Ok(None) };
        let JobInfo { headers, source, id, .. } = context.info();
        let Some(claimed) = ClaimedChild::of_headers(headers) else { return Ok(None) };
        let Ok(outer) = BatchId::new(&claimed.batch) else { return Ok(None) };
        let (ledger, index) = (Ledger::new(&self.storage, outer), claimed.index);
        // Without a proof, the headers were copied or written by another program, and there is nothing to
        // hand over.
        let secret = ledger.secret().await?.filter(|secret| claimed.is_proven(secret, source, id));
        let on_dead = headers.get(ON_DEAD).cloned().unwrap_or_default();
        let from = headers.get(OF).cloned();
        Ok(secret.map(|secret| Outer { ledger, index, secret, on_dead, from }))
    }
}

impl Ledger<'_> {
    /// Sends the continuation, unless it was certainly sent. Creates its queue if it was deleted.
    ///
    /// # Errors
    /// The storage failed. The continuation may have been sent; the next delivery sends it again.
    pub(super) async fn send_continuation(&self) -> Result<(), Error> {
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
                create_queue(self.storage, queue).await?;
                queues.put(queue, self.message(queue, text).await?).await.map(drop)
            }
            answer => answer.map(drop),
        }
    }

    async fn message(&self, queue: &QueueName, text: &str) -> Result<PutMessage, StoreError> {
        let message = send::message_of(self.storage.queues(), queue, text).await?;
        Ok(message.with_job(self.id.as_str(), CONTINUATION))
    }
}
