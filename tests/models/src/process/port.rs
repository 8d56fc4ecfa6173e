//! The storage port of a process. Answers from a script until the script ends.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use jobqueue::storage::{
    Blob, BlobListing, BlobName, BlobProperties, BlobStore, Condition, ContainerName, Created, ETag,
    ExpiredReceipt, GetMessages, Guarantees, LeaseId, LeasedMessage, MessageId, MessageRef, Metadata,
    PeekedMessage, PopReceipt, PutBlob, PutMessage, PutOutcome, QueueName, QueuePowers, QueueProperties,
    QueueStore, Received, StoreError, StoreErrorKind, UpdateMessage, Updated,
};
use tokio::sync::Notify;

use super::begin_of;
use crate::store::{self, Answer, Receipt, Request};

/// The answers that a process has received, and its next request.
#[derive(Debug)]
pub(super) struct Script {
    state: Mutex<State>,
    asked: Notify,
    minute: u32,
}

#[derive(Debug)]
struct State {
    answers: VecDeque<(Request, Answer)>,
    next: Option<Request>,
    /// The number of messages that the process may still lease, if it is a worker.
    messages: Option<u8>,
}

impl Script {
    pub(super) fn new(answers: Vec<(Request, Answer)>, is_worker: bool, minute: u32) -> Self {
        let state = State { answers: answers.into(), next: None, messages: is_worker.then_some(1) };
        Self { state: Mutex::new(state), asked: Notify::new(), minute }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the first request without an answer.
    pub(super) async fn next(&self) -> Request {
        loop {
            self.asked.notified().await;
            if let Some(request) = self.state().next.clone() {
                return request;
            }
        }
    }

    /// Returns the next answer of the script. After its end, never returns.
    pub(super) async fn ask(&self, request: Request) -> Answer {
        {
            let mut state = self.state();
            if let Some((asked, answer)) = state.answers.pop_front() {
                assert_eq!(asked, request, "the program is not deterministic");
                return answer;
            }
            state.next.get_or_insert(request);
        }
        self.asked.notify_one();
        std::future::pending().await
    }

    /// Like [`ask`](Self::ask), but returns an error of the port if the request failed.
    async fn request(&self, operation: &'static str, request: Request) -> Result<Answer, StoreError> {
        match self.ask(request).await {
            Answer::Refused(kind) => Err(StoreError::new(kind, operation, "").with_ambiguous(false)),
            Answer::Lost => {
                Err(StoreError::new(StoreErrorKind::Unavailable, operation, "").with_ambiguous(true))
            }
            answer => Ok(answer),
        }
    }

    async fn change(&self, operation: &'static str, request: Request) -> Result<u16, StoreError> {
        match self.request(operation, request).await? {
            Answer::Changed(number) => Ok(number),
            answer => panic!("{answer:?} is no answer to {operation}"),
        }
    }

    /// Returns whether the process may lease a message now.
    fn may_lease(&self) -> bool {
        match &mut self.state().messages {
            None => true,
            Some(messages) => std::mem::take(messages) > 0,
        }
    }
}

fn named(value: impl fmt::Display) -> Arc<str> {
    value.to_string().into()
}

fn path(blob: &BlobName) -> Arc<str> {
    format!("{}/{}", blob.container(), blob.name()).into()
}

fn message_ref(receipt: Receipt) -> MessageRef {
    let id = MessageId::new(format!("m{}", receipt.id));
    MessageRef { id, receipt: PopReceipt::new(receipt.number.to_string()) }
}

fn receipt(message: &MessageRef) -> Receipt {
    let id = message.id.as_str().trim_start_matches('m').parse().expect("an id of the model");
    Receipt { id, number: message.receipt.expose().parse().expect("a receipt of the model") }
}

/// Returns the time of the put of a message. Puts in the same minute are one second apart.
fn inserted(message: &store::Message) -> SystemTime {
    begin_of(message.minute) + Duration::from_secs(message.receipt.id.into())
}

fn properties(blob: &store::Blob) -> BlobProperties {
    let mut metadata = Metadata::new();
    blob.metadata.iter().for_each(|(name, value)| metadata.insert(name, value));
    let etag = ETag::new(blob.version.to_string());
    BlobProperties::new(blob.data.bytes().len() as u64, etag, begin_of(blob.minute)).with_metadata(metadata)
}

#[async_trait]
impl QueueStore for Script {
    async fn create_queue(&self, _: &QueueName, _: &Metadata) -> Result<Created, StoreError> {
        Ok(Created::Existed)
    }

    async fn delete_queue(&self, _: &QueueName) -> Result<(), StoreError> {
        Ok(())
    }

    async fn list_queues(&self, _: &str) -> Result<Vec<QueueName>, StoreError> {
        Ok(Vec::new())
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        let is_worker = self.state().messages.is_some();
        let count = if is_worker {
            Answer::Count(0)
        } else {
            self.request("queue properties", Request::Count { queue: named(queue) }).await?
        };
        let Answer::Count(count) = count else { panic!("{count:?} is no count") };
        Ok(QueueProperties::new(Metadata::new(), count))
    }

    async fn set_queue_metadata(&self, _: &QueueName, _: &Metadata) -> Result<(), StoreError> {
        Ok(())
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        let request = Request::Put { queue: named(queue), text: message.text.into() };
        let Answer::Put(receipt) = self.request("put", request).await? else { panic!("no answer to a put") };
        let now = begin_of(self.minute) + Duration::from_secs(receipt.id.into());
        Ok(PutOutcome::new(message_ref(receipt), now, now))
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        if !self.may_lease() {
            return Ok(Received::default());
        }
        let Answer::Messages(messages) = self.request("get", Request::Get { queue: named(queue) }).await?
        else {
            panic!("no answer to a get")
        };
        let newest = messages.iter().map(inserted).max();
        let until = newest.unwrap_or(begin_of(self.minute)).max(begin_of(self.minute))
            + Duration::from_millis(500)
            + options.visibility;
        let leased = messages.iter().map(|message| {
            let text = Ok(message.text.to_string());
            let count = message.deliveries.into();
            LeasedMessage::new(message_ref(message.receipt), text, count, inserted(message), until)
        });
        Ok(Received::new(leased.collect()))
    }

    async fn peek(&self, queue: &QueueName, _: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        let Answer::Messages(messages) = self.request("peek", Request::Peek { queue: named(queue) }).await?
        else {
            panic!("no answer to a peek")
        };
        let peeked = messages.iter().map(|message| {
            let text = Ok(message.text.to_string());
            let id = message_ref(message.receipt).id;
            PeekedMessage::new(id, text, message.deliveries.into(), inserted(message))
        });
        Ok(peeked.collect())
    }

    async fn update(
        &self,
        _: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        let (id, ends_lease) = (receipt(message).id, change.ends_lease);
        let text = change.text.map(Into::into);
        let request = Request::Update { message: receipt(message), text, ends_lease };
        let number = self.change("update", request).await?;
        let until = begin_of(self.minute) + change.visibility;
        Ok(Updated::new(message_ref(Receipt { id, number }).receipt, until))
    }

    async fn delete(&self, _: &QueueName, message: &MessageRef, _: ExpiredReceipt) -> Result<(), StoreError> {
        self.change("delete", Request::Delete { message: receipt(message) }).await.map(drop)
    }

    async fn clear(&self, _: &QueueName) -> Result<(), StoreError> {
        panic!("no model clears a queue")
    }

    fn powers(self: Arc<Self>) -> QueuePowers {
        let guarantees = Guarantees { counts_deliveries: true, ..Guarantees::default() };
        QueuePowers { guarantees, ..QueuePowers::default() }
    }
}

#[async_trait]
impl BlobStore for Script {
    async fn create_container(&self, _: &ContainerName) -> Result<(), StoreError> {
        Ok(())
    }

    async fn delete_container(&self, _: &ContainerName) -> Result<(), StoreError> {
        Ok(())
    }

    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        let condition = match &options.condition {
            Condition::Always => store::Condition::Always,
            Condition::IfAbsent => store::Condition::Absent,
            Condition::IfMatch(tag) => {
                store::Condition::Version(tag.as_str().parse().expect("a tag of the model"))
            }
        };
        let fields = options.metadata.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let metadata: Vec<_> = fields.collect();
        let data = store::Content::from(data);
        let request =
            Request::PutBlob { name: path(blob), data: data.clone(), metadata: metadata.clone(), condition };
        let version = self.change("put blob", request).await?;
        Ok(properties(&store::Blob { version, data, metadata, minute: self.minute }))
    }

    async fn get_blob(&self, blob: &BlobName, _: u64) -> Result<Blob, StoreError> {
        match self.request("get blob", Request::GetBlob { name: path(blob) }).await? {
            Answer::Blob(found) => Ok(Blob::new(found.data.bytes().clone(), properties(&found))),
            answer => panic!("{answer:?} is no blob"),
        }
    }

    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError> {
        self.get_blob(blob, 0).await.map(|blob| blob.properties)
    }

    async fn delete_blob(&self, blob: &BlobName, _: Option<&LeaseId>) -> Result<(), StoreError> {
        self.change("delete blob", Request::DeleteBlob { name: path(blob) }).await.map(drop)
    }

    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        _: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        let prefix = named(format!("{container}/{prefix}"));
        let Answer::Listed(blobs) = self.request("list blobs", Request::ListBlobs { prefix }).await? else {
            panic!("no answer to a listing")
        };
        let inside = container.as_str().len() + 1;
        let listed = blobs.iter().map(|(name, blob)| (name[inside..].to_owned(), properties(blob)));
        Ok(BlobListing::new(listed.collect()))
    }
}
