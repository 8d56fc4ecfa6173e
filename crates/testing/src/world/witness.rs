//! Records what a process does to the messages of each job, and the answers that it receives.
//!
//! The witness stands between a process and its view of the storage, so that the ledger also knows the jobs that the library itself
//! sends: follow-ups, the children of batches, the slots of schedules. What bypasses the port, as a send within the caller's own
//! transaction does, is known from its first delivery on.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jobqueue::storage::{
    Batches, Created, DeadLetterMessage, Detach, ExpiredReceipt, GetMessages, MessageRef, Metadata,
    NativeDeadLetters, Operation, PeekedMessage, PutMessage, PutOutcome, QueueName, QueuePowers,
    QueueProperties, QueueStore, Received, Storage, StoreError, Stores, UpdateMessage, Updated,
};

use super::known_messages::job_of;
use super::ledger::{Fact, Verdict};
use super::shared::Shared;

/// The time after which an answer is late: a lease may have run out meanwhile.
const LATE: Duration = Duration::from_secs(1);

/// The queues of one account, as one process sees them.
#[derive(Debug, Clone)]
pub(super) struct Witness {
    inner: Arc<dyn QueueStore>,
    shared: Arc<Shared>,
    node: Arc<str>,
    account: usize,
}

impl Witness {
    /// Returns the storage of a process whose calls are recorded.
    pub(super) fn of(storage: &Storage, shared: &Arc<Shared>, node: &Arc<str>, account: usize) -> Storage {
        let inner = Arc::clone(storage.queues().store());
        let witness = Self { inner, shared: Arc::clone(shared), node: Arc::clone(node), account };
        // The throttle of a storage draws from the runtime that it is built with.
        let stores = Stores::new(Arc::new(witness), Arc::clone(storage.blobs()), storage.description());
        stores.with_runtime(storage.runtime().clone()).into()
    }

    fn note(&self, job: &Arc<str>, fact: Fact) {
        self.shared.ledger.note_of(&self.node, job, fact);
    }

    fn job(&self, queue: &QueueName, message: &MessageRef) -> Option<Arc<str>> {
        self.shared.messages.job((self.account, queue), message)
    }

    fn put_begins(&self, queue: &QueueName, message: &PutMessage) -> Option<Put> {
        let id = job_of(&message.text)?;
        let queue: Arc<str> = queue.as_str().into();
        self.note(&id, Fact::PutBegan { queue: Arc::clone(&queue) });
        Some(Put { id, queue, expires: message.ttl.map(|ttl| self.shared.ledger.now() + ttl) })
    }

    fn put_ended(&self, queue: &QueueName, put: Option<Put>, answer: &Result<PutOutcome, StoreError>) {
        let Some(Put { id, queue: name, expires }) = put else { return };
        let verdict = match answer {
            Ok(outcome) => {
                self.shared.messages.add((self.account, queue), &outcome.message, &id);
                Verdict::Acknowledged
            }
            Err(error) if error.is_ambiguous() => Verdict::Unknown,
            Err(_) => Verdict::Refused,
        };
        self.note(&id, Fact::Put { queue: name, verdict, expires });
    }

    fn change(&self, operation: Operation, jobs: Vec<Option<Arc<str>>>) -> Change<'_> {
        Change { witness: self, operation, jobs, since: self.shared.ledger.now() }
    }

    fn deleted(&self, queue: &QueueName, job: Option<&Arc<str>>, answer: &Result<(), StoreError>) {
        if let (Some(id), Ok(())) = (job, answer) {
            self.note(id, Fact::Deleted { queue: queue.as_str().into() });
        }
    }
}

/// A put whose answer is awaited.
struct Put {
    id: Arc<str>,
    queue: Arc<str>,
    expires: Option<Duration>,
}

/// A change of messages whose answer is awaited. Without an answer it is recorded when the process gives it up.
struct Change<'a> {
    witness: &'a Witness,
    operation: Operation,
    jobs: Vec<Option<Arc<str>>>,
    since: Duration,
}

impl Change<'_> {
    fn is_late(&self) -> bool {
        self.witness.shared.ledger.now() > self.since + LATE
    }

    /// Records the answers, and returns the jobs.
    fn ended<'a, T: 'a>(
        mut self,
        answers: impl IntoIterator<Item = &'a Result<T, StoreError>>,
    ) -> Vec<Option<Arc<str>>> {
        let jobs = std::mem::take(&mut self.jobs);
        for (job, answer) in jobs.iter().zip(answers) {
            match (job, answer) {
                (Some(id), Err(_)) => self.failed(id, "failed"),
                (Some(id), Ok(_)) if self.is_late() => self.failed(id, "was late"),
                _ => {}
            }
        }
        jobs
    }

    fn failed(&self, id: &Arc<str>, how: &'static str) {
        self.witness.note(id, Fact::CallFailed { operation: self.operation, how });
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        for id in std::mem::take(&mut self.jobs).iter().flatten() {
            self.failed(id, "was given up");
        }
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl QueueStore for Witness {
    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        let put = self.put_begins(queue, &message);
        let answer = self.inner.put(queue, message).await;
        self.put_ended(queue, put, &answer);
        answer
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        let asked = self.shared.ledger.len();
        let received = self.inner.get(queue, options).await?;
        for message in &received.messages {
            let Some(id) = message.text.as_deref().ok().and_then(job_of) else { continue };
            self.shared.messages.add((self.account, queue), &message.message, &id);
            let (inserted, delivery) = (message.inserted, message.dequeue_count);
            self.note(&id, Fact::Received { queue: queue.as_str().into(), inserted, delivery, asked });
        }
        Ok(received)
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        let pending = self.change(Operation::Update, vec![self.job(queue, message)]);
        let answer = self.inner.update(queue, message, change).await;
        pending.ended([&answer]);
        answer
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        let pending = self.change(Operation::Delete, vec![self.job(queue, message)]);
        let answer = self.inner.delete(queue, message, expired).await;
        let jobs = pending.ended([&answer]);
        self.deleted(queue, jobs[0].as_ref(), &answer);
        answer
    }

    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        self.inner.create_queue(queue, metadata).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.inner.delete_queue(queue).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        self.inner.list_queues(prefix).await
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        self.inner.queue_properties(queue).await
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        self.inner.set_queue_metadata(queue, metadata).await
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        self.inner.peek(queue, count).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.inner.clear(queue).await
    }

    fn powers(self: Arc<Self>) -> QueuePowers {
        let QueuePowers {
            guarantees,
            peek_reach,
            metadata,
            counts,
            index,
            batches,
            groups,
            dead_letters,
            arrivals,
            links,
            upkeep,
            permissions,
            detach,
            transaction_place,
        } = Arc::clone(&self.inner).powers();
        let witness = || Self::clone(&self);
        QueuePowers {
            batches: batches.map(|inner| Arc::new(Power { witness: witness(), inner }) as _),
            dead_letters: dead_letters.map(|inner| Arc::new(Power { witness: witness(), inner }) as _),
            detach: detach.map(|inner| Arc::new(Power { witness: witness(), inner }) as _),
            // These are not recorded: none of them puts, receives or deletes the message of a job.
            guarantees,
            peek_reach,
            metadata,
            counts,
            index,
            groups,
            arrivals,
            links,
            upkeep,
            permissions,
            transaction_place,
        }
    }
}

/// A power of the queues whose calls concern messages.
#[derive(Debug)]
struct Power<P: ?Sized> {
    witness: Witness,
    inner: Arc<P>,
}

#[async_trait]
impl Batches for Power<dyn Batches> {
    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Arc<[PutMessage]>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let puts: Vec<_> = messages.iter().map(|message| self.witness.put_begins(queue, message)).collect();
        let answers = self.inner.put_all(queue, messages).await;
        puts.into_iter().zip(&answers).for_each(|(put, answer)| self.witness.put_ended(queue, put, answer));
        answers
    }

    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        let jobs = messages.iter().map(|message| self.witness.job(queue, message)).collect();
        let pending = self.witness.change(Operation::DeleteAll, jobs);
        let answers = self.inner.delete_all(queue, messages, expired).await;
        let jobs = pending.ended(&answers);
        jobs.iter().zip(&answers).for_each(|(job, answer)| self.witness.deleted(queue, job.as_ref(), answer));
        answers
    }
}

#[async_trait]
impl NativeDeadLetters for Power<dyn NativeDeadLetters> {
    async fn dead_letter(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        letter: DeadLetterMessage,
    ) -> Result<(), StoreError> {
        let pending = self.witness.change(Operation::DeadLetter, vec![self.witness.job(queue, message)]);
        let answer = self.inner.dead_letter(queue, message, letter).await;
        pending.ended([&answer]);
        answer
    }
}

impl Detach<dyn QueueStore> for Power<dyn Detach<dyn QueueStore>> {
    fn detached(&self) -> Arc<dyn QueueStore> {
        Arc::new(Witness { inner: self.inner.detached(), ..self.witness.clone() })
    }
}
