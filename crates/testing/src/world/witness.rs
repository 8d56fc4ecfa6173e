//! Records the changes that a process makes to the messages of each job, and the answers that it receives.
//!
//! The witness sits between a process and its view of the storage. So the ledger also knows the jobs that the
//! library itself sends: follow-ups, the children of batches, the slots of schedules. A message that bypasses
//! the port, as in a send within the caller's own transaction, is known from its first delivery on.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::storage::{
    GetMessages, Intercepted, Interceptor, MessageRef, Operation, PutMessage, PutOutcome, QueueName,
    Received, Storage, StoreError, Stores, UpdateMessage, Updated,
};

use super::known_messages::job_of;
use super::ledger::{Fact, Verdict};
use super::shared::Shared;

/// The time after which an answer is late, because a lease may have run out before it.
const LATE_ANSWER: Duration = Duration::from_secs(1);

/// The queues of one account, as one process sees them.
#[derive(Debug)]
pub(super) struct Witness {
    shared: Arc<Shared>,
    node: Arc<str>,
    account: usize,
}

impl Witness {
    /// Returns the storage of a process whose calls are recorded.
    pub(super) fn of(storage: &Storage, shared: &Arc<Shared>, node: &Arc<str>, account: usize) -> Storage {
        let witness = Self { shared: Arc::clone(shared), node: Arc::clone(node), account };
        let queues = Intercepted::queues(Arc::clone(storage.queues().store()), &Arc::new(witness));
        // The throttle of a storage draws random numbers from the runtime with which the storage is built.
        let stores = Stores::new(queues, Arc::clone(storage.blobs()), storage.description());
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

/// A change of messages whose answer is awaited. If it is dropped without an answer, it is recorded as given
/// up.
struct Change<'a> {
    witness: &'a Witness,
    operation: Operation,
    jobs: Vec<Option<Arc<str>>>,
    since: Duration,
}

impl Change<'_> {
    fn is_late(&self) -> bool {
        self.witness.shared.ledger.now() > self.since + LATE_ANSWER
    }

    /// Records the answers and returns the jobs.
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

impl Interceptor for Witness {
    async fn put<F: Future<Output = Result<PutOutcome, StoreError>> + Send>(
        &self,
        queue: &QueueName,
        message: PutMessage,
        perform: impl FnOnce(PutMessage) -> F + Send,
    ) -> Result<PutOutcome, StoreError> {
        let put = self.put_begins(queue, &message);
        let answer = perform(message).await;
        self.put_ended(queue, put, &answer);
        answer
    }

    async fn get<F: Future<Output = Result<Received, StoreError>> + Send>(
        &self,
        queue: &QueueName,
        options: GetMessages,
        perform: impl FnOnce(GetMessages) -> F + Send,
    ) -> Result<Received, StoreError> {
        let asked = self.shared.ledger.len();
        let received = perform(options).await?;
        for message in &received.messages {
            let Some(id) = message.text.as_deref().ok().and_then(job_of) else { continue };
            self.shared.messages.add((self.account, queue), &message.message, &id);
            let (inserted, delivery) = (message.inserted, message.dequeue_count);
            self.note(&id, Fact::Received { queue: queue.as_str().into(), inserted, delivery, asked });
        }
        Ok(received)
    }

    async fn update<F: Future<Output = Result<Updated, StoreError>> + Send>(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
        perform: impl FnOnce(UpdateMessage) -> F + Send,
    ) -> Result<Updated, StoreError> {
        let pending = self.change(Operation::Update, vec![self.job(queue, message)]);
        let answer = perform(change).await;
        pending.ended([&answer]);
        answer
    }

    async fn remove(
        &self,
        operation: Operation,
        queue: &QueueName,
        message: &MessageRef,
        perform: impl Future<Output = Result<(), StoreError>> + Send,
    ) -> Result<(), StoreError> {
        let pending = self.change(operation, vec![self.job(queue, message)]);
        let answer = perform.await;
        let jobs = pending.ended([&answer]);
        if operation == Operation::Delete {
            self.deleted(queue, jobs[0].as_ref(), &answer);
        }
        answer
    }

    async fn put_all(
        &self,
        queue: &QueueName,
        messages: &[PutMessage],
        perform: impl Future<Output = Vec<Result<PutOutcome, StoreError>>> + Send,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let puts: Vec<_> = messages.iter().map(|message| self.put_begins(queue, message)).collect();
        let answers = perform.await;
        puts.into_iter().zip(&answers).for_each(|(put, answer)| self.put_ended(queue, put, answer));
        answers
    }

    async fn delete_all<F: Future<Output = Vec<Result<(), StoreError>>> + Send>(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        perform: impl FnOnce(Vec<MessageRef>) -> F + Send,
    ) -> Vec<Result<(), StoreError>> {
        let jobs = messages.iter().map(|message| self.job(queue, message)).collect();
        let pending = self.change(Operation::DeleteAll, jobs);
        let answers = perform(messages).await;
        let jobs = pending.ended(&answers);
        jobs.iter().zip(&answers).for_each(|(job, answer)| self.deleted(queue, job.as_ref(), answer));
        answers
    }
}
