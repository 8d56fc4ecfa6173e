//! A reference and a subject, their answers, and the comparison.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use jobqueue::clock::{Clock, ManualClock};
use jobqueue::settings::Metadata;
use jobqueue::storage::*;
use jobqueue::storage::{BlobName, ContainerName};
use jobqueue::{QueueName, memory};
use tokio::runtime::{Builder, Runtime};

use crate::model::operation::{BlobOp, Op, Pick, Text};

/// Two storages with one clock.
#[derive(Debug)]
pub struct Pair {
    runtime: Runtime,
    clock: Arc<ManualClock>,
    sides: [Side; 2],
    leases: [LeaseId; 2],
    _folder: Option<tempfile::TempDir>,
}

/// A storage, and its answers so far.
#[derive(Debug)]
struct Side {
    storage: Storage,
    refs: Vec<MessageRef>,
    tags: Vec<ETag>,
    numbers: HashMap<MessageId, usize>,
    tag_numbers: HashMap<String, usize>,
}

/// An answer as text, with ids, receipts and tags replaced by the numbers of their first appearance.
type Answer = String;

impl Pair {
    /// Returns a reference and the storage that `open` returns, each with one queue and one container.
    pub fn open(open: impl AsyncFnOnce(Arc<dyn Clock>) -> (Storage, Option<tempfile::TempDir>)) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let ids = jobqueue::Runtime::new();
        let clock = Arc::new(ManualClock::new());
        let (subject, folder) = runtime.block_on(open(clock.clone()));
        let sides = [
            Side::new(memory::open_on(jobqueue::Runtime::new().with_clock(clock.clone()))),
            Side::new(subject),
        ];
        let mut pair = Self {
            runtime,
            clock,
            sides,
            leases: [LeaseId::random(&ids), LeaseId::random(&ids)],
            _folder: folder,
        };
        pair.apply(&Op::CreateQueue { queue: 0, metadata: 0 });
        pair.apply(&Op::CreateContainer);
        pair
    }

    /// Performs the operation on both, and compares the answers.
    ///
    /// # Panics
    /// If they differ.
    pub fn apply(&mut self, operation: &Op) {
        if let Op::Advance(by) = operation {
            self.clock.advance(Duration::from_millis(*by));
            return;
        }
        let leases = self.leases;
        let [reference, subject] = &mut self.sides;
        let expected = self.runtime.block_on(reference.perform(operation, &leases));
        let found = self.runtime.block_on(subject.perform(operation, &leases));
        assert_eq!(found, expected, "the storage differs from the reference (right) in {operation:?}");
    }
}

impl Side {
    fn new(storage: Storage) -> Self {
        Self {
            storage,
            refs: Vec::new(),
            tags: Vec::new(),
            numbers: HashMap::new(),
            tag_numbers: HashMap::new(),
        }
    }

    async fn perform(&mut self, operation: &Op, leases: &[LeaseId; 2]) -> Answer {
        let queues = Arc::clone(self.storage.queues());
        match operation {
            Op::Advance(_) => String::new(),
            Op::CreateQueue { queue, metadata: kind } => {
                plain(queues.create_queue(&name(*queue), &metadata(*kind)).await)
            }
            Op::DeleteQueue { queue } => plain(queues.delete_queue(&name(*queue)).await),
            Op::ListQueues => plain(queues.list_queues("queue").await),
            Op::Properties { queue } => {
                let properties = queues.queue_properties(&name(*queue)).await;
                plain(properties.map(|found| (found.metadata, found.approximate_count)))
            }
            Op::SetMetadata { queue, metadata: kind } => {
                plain(queues.set_queue_metadata(&name(*queue), &metadata(*kind)).await)
            }
            Op::Peek { queue, count } => {
                let peeked = queues.peek(&name(*queue), *count).await;
                plain(peeked.map(|peeked| {
                    let show = |m: PeekedMessage| {
                        (self.number(&m.id), m.text, m.dequeue_count, m.inserted, m.expires)
                    };
                    peeked.into_iter().map(show).collect::<Vec<_>>()
                }))
            }
            Op::Clear { queue } => plain(queues.clear(&name(*queue)).await),
            Op::CreateContainer => plain(self.storage.blobs().create_container(&container()).await),
            Op::DeleteContainer => plain(self.storage.blobs().delete_container(&container()).await),
            Op::ListBlobs { prefix } => {
                let listing = self.storage.blobs().list_blobs(&container(), prefix, None).await;
                plain(listing.map(|listing| {
                    let blobs = listing.blobs.into_iter();
                    (blobs.map(|(name, p)| (name, self.properties(p))).collect::<Vec<_>>(), listing.next)
                }))
            }
            Op::Blob { blob, action } => self.perform_on_blob(&blob_name(*blob), action, leases).await,
            on_messages => self.perform_on_messages(on_messages).await,
        }
    }

    async fn perform_on_messages(&mut self, operation: &Op) -> Answer {
        let queues = Arc::clone(self.storage.queues());
        match operation {
            Op::Put { queue, text, delay, ttl } => {
                let message =
                    PutMessage::new(string(*text)).with_visibility_delay(ms(*delay)).with_ttl(ttl.map(ms));
                let put = queues.put(&name(*queue), message).await;
                self.put_answer(put)
            }
            Op::PutAll { queue, texts } => {
                let messages = texts.iter().map(|text| PutMessage::new(string(*text))).collect();
                let puts = queues.put_all(&name(*queue), messages).await;
                puts.into_iter().map(|put| self.put_answer(put) + "; ").collect()
            }
            Op::Get { queue, count, visibility } => {
                let options = GetMessages::new(*count, ms(*visibility));
                let received = queues.get(&name(*queue), options).await;
                // The time until the next message may be early on one of them.
                plain(received.map(|received| {
                    received.messages.into_iter().map(|m| self.leased(m)).collect::<Vec<_>>()
                }))
            }
            Op::Update { queue, message, visibility, text, expired } => {
                let message = self.pick(*message);
                let text = text.map(string);
                let change =
                    UpdateMessage::new(ms(*visibility)).with_text(text).with_expired(lateness(*expired));
                let updated = queues.update(&name(*queue), &message, change).await;
                plain(updated.map(|updated| {
                    self.refs.push(MessageRef { id: message.id, receipt: updated.receipt });
                    updated.next_visible
                }))
            }
            Op::Delete { queue, message, expired } => {
                plain(queues.delete(&name(*queue), &self.pick(*message), lateness(*expired)).await)
            }
            Op::DeleteAll { queue, messages, expired } => {
                let messages = messages.iter().map(|message| self.pick(*message)).collect();
                let answers = queues.delete_all(&name(*queue), messages, lateness(*expired)).await;
                answers.into_iter().map(|answer| plain(answer) + "; ").collect()
            }
            other => unreachable!("{other:?} is not an operation on messages"),
        }
    }

    async fn perform_on_blob(&mut self, blob: &BlobName, action: &BlobOp, leases: &[LeaseId; 2]) -> Answer {
        let blobs = Arc::clone(self.storage.blobs());
        let grants = Arc::clone(self.storage.leases().unwrap());
        let lease = |number: u8| leases[usize::from(number)];
        let same = |id: LeaseId| leases.iter().position(|known| *known == id);
        match action {
            BlobOp::Put { content, condition, lease: held, bad_metadata } => {
                let mut options = PutBlob::new().with_condition(match condition {
                    None => Condition::Always,
                    Some(None) => Condition::IfAbsent,
                    Some(Some(tag)) => Condition::IfMatch(self.tag(*tag)),
                });
                if let Some(held) = held {
                    options = options.with_lease(lease(*held));
                }
                let options = options.with_metadata(metadata(if *bad_metadata { 3 } else { content % 3 }));
                let data = Bytes::from(vec![*content; usize::from(*content)]);
                let put = blobs.put_blob(blob, data, options).await;
                plain(put.map(|properties| {
                    self.tags.push(properties.etag.clone());
                    self.properties(properties)
                }))
            }
            BlobOp::Get { max } => {
                let read = blobs.get_blob(blob, *max).await;
                plain(read.map(|read| (read.data, self.properties(read.properties))))
            }
            BlobOp::Properties => {
                let properties = blobs.blob_properties(blob).await;
                plain(properties.map(|properties| self.properties(properties)))
            }
            BlobOp::Delete { lease: held } => plain(blobs.delete_blob(blob, held.map(lease).as_ref()).await),
            BlobOp::Acquire { lease: id, duration } => {
                plain(grants.acquire_lease(blob, ms(*duration), &lease(*id)).await.map(same))
            }
            BlobOp::Renew { lease: id } => plain(grants.renew_lease(blob, &lease(*id)).await.map(same)),
            BlobOp::Release { lease: id } => plain(grants.release_lease(blob, &lease(*id)).await),
        }
    }

    fn put_answer(&mut self, put: Result<PutOutcome, StoreError>) -> Answer {
        plain(put.map(|put| {
            let number = self.number(&put.message.id);
            self.refs.push(put.message);
            (number, put.inserted, put.expires, put.next_visible)
        }))
    }

    fn leased(&mut self, message: LeasedMessage) -> impl Debug + use<> {
        let times: (SystemTime, Option<SystemTime>, SystemTime) =
            (message.inserted, message.expires, message.next_visible);
        let number = self.number(&message.message.id);
        self.refs.push(message.message);
        (number, message.text, message.dequeue_count, times)
    }

    fn properties(&mut self, properties: BlobProperties) -> impl Debug + use<> {
        let next = self.tag_numbers.len();
        let tag = *self.tag_numbers.entry(properties.etag.as_str().to_owned()).or_insert(next);
        (tag, properties.length, properties.modified, properties.metadata, properties.is_leased)
    }

    fn number(&mut self, id: &MessageId) -> usize {
        let next = self.numbers.len();
        *self.numbers.entry(id.clone()).or_insert(next)
    }

    fn pick(&self, pick: Pick) -> MessageRef {
        let from_newest = |back: usize| self.refs.iter().rev().cycle().nth(back);
        match (from_newest(pick.id), from_newest(pick.receipt)) {
            (Some(message), Some(other)) => {
                MessageRef { id: message.id.clone(), receipt: other.receipt.clone() }
            }
            _ => MessageRef {
                id: MessageId::new("00000000-0000-4000-8000-000000000000"),
                receipt: PopReceipt::new("00000000000000000000000000000000"),
            },
        }
    }

    fn tag(&self, back: usize) -> ETag {
        self.tags.iter().rev().cycle().nth(back).cloned().unwrap_or_else(|| ETag::new("\"none\""))
    }
}

fn plain<T: Debug>(result: Result<T, StoreError>) -> Answer {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("{:?}, ambiguous: {}", error.kind(), error.is_ambiguous()),
    }
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn lateness(expired: bool) -> ExpiredReceipt {
    if expired { ExpiredReceipt::Allow } else { ExpiredReceipt::Refuse }
}

fn name(queue: u8) -> QueueName {
    QueueName::new(format!("queue-{queue}")).unwrap()
}

fn container() -> ContainerName {
    ContainerName::new("blobs").unwrap()
}

fn blob_name(blob: u8) -> BlobName {
    BlobName::new(container(), format!("b/{blob}")).unwrap()
}

/// 0–2 are valid, 3 is not.
fn metadata(kind: u8) -> Metadata {
    match kind {
        0 => Metadata::new(),
        1 => Metadata::new().with("a", "1"),
        2 => Metadata::new().with("A", "2").with("b", "x y"),
        _ => Metadata::new().with("1bad", "1"),
    }
}

fn string(text: Text) -> String {
    match text {
        Text::Number(number) => format!("text {number}"),
        Text::Empty => String::new(),
        Text::Largest => "x".repeat(65_536),
        Text::TooLarge => "x".repeat(65_537),
        Text::TooLargeEscaped => "&".repeat(65_536),
        Text::Illegal => "a\u{1}".to_owned(),
        Text::Unicode => " 世界\r\n<&>\"".to_owned(),
    }
}
