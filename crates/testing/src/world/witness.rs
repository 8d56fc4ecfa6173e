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

    fn change(&self, operation: Operation, queue: &QueueName, messages: &[MessageRef]) -> Change<'_> {
        let target = |message: &MessageRef| {
            let job = self.shared.messages.job((self.account, queue), message)?;
            let message = format!("{} {queue} {}", self.account, message.id).into();
            Some(Target { job, message })
        };
        let targets = messages.iter().map(target).collect();
        let (since, asked) = (self.shared.ledger.now(), self.shared.ledger.len());
        Change { witness: self, operation, targets, since, asked }
    }

    fn deleted(&self, queue: &QueueName, target: Option<&Target>, answer: &Result<(), StoreError>) {
        if let (Some(target), Ok(())) = (target, answer) {
            self.note(&target.job, Fact::Deleted { queue: queue.as_str().into() });
        }
    }
}

/// A put whose answer is awaited.
struct Put {
    id: Arc<str>,
    queue: Arc<str>,
    expires: Option<Duration>,
}

/// A message that is changed, and its job.
struct Target {
    job: Arc<str>,
    /// The account, the queue and the id of the message.
    message: Arc<str>,
}

/// A change of messages whose answer is awaited. If it is dropped without an answer, it is recorded as given
/// up.
struct Change<'a> {
    witness: &'a Witness,
    operation: Operation,
    targets: Vec<Option<Target>>,
    since: Duration,
    /// The number of the first entry after the request.
    asked: usize,
}

impl Change<'_> {
    /// Records the answers and returns the messages.
    fn ended<'a, T: 'a>(
        mut self,
        answers: impl IntoIterator<Item = &'a Result<T, StoreError>>,
    ) -> Vec<Option<Target>> {
        let targets = std::mem::take(&mut self.targets);
        let is_late = self.witness.shared.ledger.now() > self.since + LATE_ANSWER;
        let operation = self.operation;
        for (target, answer) in targets.iter().zip(answers) {
            let Some(target) = target else { continue };
            match answer {
                Err(error) if error.is_lease_lost() && !error.is_ambiguous() => {
                    self.witness.note(&target.job, Fact::CallRefused { operation });
                }
                Err(_) => self.failed(target, "failed"),
                Ok(_) if is_late => self.failed(target, "was late"),
                Ok(_) => {
                    let message = Arc::clone(&target.message);
                    self.witness.note(&target.job, Fact::Changed { operation, message });
                }
            }
        }
        targets
    }

    fn failed(&self, target: &Target, how: &'static str) {
        let (operation, message, asked) = (self.operation, Arc::clone(&target.message), self.asked);
        self.witness.note(&target.job, Fact::CallFailed { operation, message, asked, how });
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        for target in std::mem::take(&mut self.targets).iter().flatten() {
            self.failed(target, "was given up");
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
        let pending = self.change(Operation::Update, queue, std::slice::from_ref(message));
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
        let pending = self.change(operation, queue, std::slice::from_ref(message));
        let answer = perform.await;
        let targets = pending.ended([&answer]);
        if operation == Operation::Delete {
            self.deleted(queue, targets[0].as_ref(), &answer);
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
        let pending = self.change(Operation::DeleteAll, queue, &messages);
        let answers = perform(messages).await;
        let targets = pending.ended(&answers);
        targets
            .iter()
            .zip(&answers)
            .for_each(|(target, answer)| self.deleted(queue, target.as_ref(), answer));
        answers
    }
}
