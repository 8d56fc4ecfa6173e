//! Implements the queue half of the port over the service's REST operations.

mod answer;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use azure_core::http::StatusCode;
use azure_core::http::pager::PagerOptions;
use azure_storage_queue::models::{
    QueueClientCreateOptions, QueueClientDeleteMessageOptions, QueueClientPeekMessagesOptions,
    QueueClientReceiveMessagesOptions, QueueClientSendMessageOptions, QueueClientUpdateMessageOptions,
    QueueServiceClientListQueuesOptions,
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::time::Instant;

use super::call::{Call, limited, with_limit, with_receipt};
use super::connection::Connection;
use super::convert::{self, from_headers, http_date, to_headers};
use super::pipeline::{PLACEHOLDER, RECEIPT};
use super::{probe, xml};
use jobqueue_storage::rules::limits;
use jobqueue_storage::{
    Access, Arrivals, Batches, Created, Detach, ExpiredReceipt, GetMessages, Guarantees, MessageRef,
    Metadata, Notifiers, PeekedMessage, Permissions, PopReceipt, PutMessage, PutOutcome, QueueName,
    QueuePowers, QueueProperties, QueueStore, Received, StoreError, StoreErrorKind, Subscription,
    UpdateMessage, Updated, put_each,
};

/// The number of concurrent requests of `put_all` and of `delete_all`: the service has no bulk operations.
const CONCURRENT_REQUESTS: usize = 16;

/// The maximum size of a page of 5,000 names, in bytes.
const MAX_LIST_BYTES: u64 = 8 * 1024 * 1024;

/// The maximum size of the answer to a get, in bytes: 32 messages of 64 KiB, each byte written as a character
/// reference.
const MAX_ANSWER_BYTES: u64 = 16 * 1024 * 1024;

/// The maximum number of requests of a clear. The service deletes a large queue in parts, and ends each
/// request but the last with a timeout.
const CLEAR_ROUNDS: u32 = 60;

/// The queues of a storage account.
///
/// Visibility and time to live are sent in whole seconds, rounded up. The service accepts an expired receipt
/// until another worker gets the message, whatever [`ExpiredReceipt`] says: it does not guarantee
/// `checks_expiry`.
#[derive(Debug)]
pub(super) struct AzureQueues {
    connection: Arc<Connection>,
    /// Woken by the puts and releases of this process: the service announces no messages.
    own_messages: Arc<Notifiers>,
}

impl AzureQueues {
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        Self { connection, own_messages: Arc::default() }
    }
}

#[async_trait]
impl QueueStore for AzureQueues {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        let call = Call::repeatable("create queue", queue);
        let headers = to_headers(call, metadata)?;
        let create = || async {
            let options = QueueClientCreateOptions {
                metadata: Some(headers.clone()),
                ..QueueClientCreateOptions::default()
            };
            self.connection.queue(queue)?.create(Some(options)).await
        };
        match call.run_repeatable(self.connection.runtime(), create).await {
            Ok(answer) if answer.status() == StatusCode::NoContent => Ok(Created::Existed),
            Ok(_) => Ok(Created::New),
            // The service compares metadata by its own rules; ours ignore the case of names. Also, a caller
            // that may only use existing queues may be forbidden to create them.
            Err(error)
                if matches!(
                    error.kind(),
                    StoreErrorKind::QueueAlreadyExists | StoreErrorKind::Unauthorized
                ) =>
            {
                match self.queue_properties(queue).await {
                    Ok(present) if present.metadata == *metadata => Ok(Created::Existed),
                    Ok(_) => Err(call.error(StoreErrorKind::QueueAlreadyExists)),
                    Err(_) => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        let call = Call::once("delete queue", queue);
        call.run(async { self.connection.queue(queue)?.delete(None).await }).await.map(drop)
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        let call = Call::reads("list queues", &prefix);
        let mut names = BTreeSet::new();
        let (mut marker, mut seen) = (None, HashSet::new());
        loop {
            let read = call.run_repeatable(self.connection.runtime(), || async {
                let options = QueueServiceClientListQueuesOptions {
                    prefix: Some(prefix.to_owned()).filter(|prefix| !prefix.is_empty()),
                    marker: marker.clone(),
                    method_options: PagerOptions {
                        context: limited(MAX_LIST_BYTES),
                        ..PagerOptions::default()
                    },
                    ..QueueServiceClientListQueuesOptions::default()
                };
                let mut pages = self.connection.queue_service().list_queues(Some(options))?.into_pages();
                pages.next().await.transpose()?.map(|page| page.into_model()).transpose()
            });
            let Some(page) = read.await? else { break };
            // Skips names that are invalid here, such as the service's own `$…`. A page may contain only such
            // names.
            let found = page.queue_items.iter().filter_map(|item| QueueName::new(item.name.as_deref()?).ok());
            names.extend(found);
            marker = page.next_marker.filter(|marker| !marker.is_empty());
            // A storage that pages in circles, as Azurite does, must not keep the caller forever.
            if marker.clone().is_none_or(|marker| !seen.insert(marker)) {
                break;
            }
        }
        Ok(names.into_iter().collect())
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        let call = Call::reads("read queue properties", queue);
        let read = || async { self.connection.queue(queue)?.get_properties(None).await };
        let answer = call.run_repeatable(self.connection.runtime(), read).await?;
        let count = answer
            .headers()
            .get_optional_str(&"x-ms-approximate-messages-count".into())
            .and_then(|count| count.parse().ok())
            .ok_or_else(|| call.unreadable("the answer has no x-ms-approximate-messages-count"))?;
        let now = answer.headers().get_optional_str(&"date".into()).and_then(http_date);
        Ok(QueueProperties::new(from_headers(answer.headers()), count).with_now(now))
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        let call = Call::repeatable("set queue metadata", queue);
        let headers = to_headers(call, metadata)?;
        let set = || async { self.connection.queue(queue)?.set_metadata(&headers, None).await };
        call.run_repeatable(self.connection.runtime(), set).await.map(drop)
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        let call = Call::once("put message", queue);
        limits::check_put(queue, &message)?;
        let body = Bytes::from(xml::write_message(&message.text));
        let (delay, ttl) = times(call, &message)?;
        let put = call.run(async {
            let options = QueueClientSendMessageOptions {
                message_time_to_live: Some(ttl),
                visibility_timeout: Some(delay),
                ..QueueClientSendMessageOptions::default()
            };
            self.connection.queue(queue)?.send_message(body.into(), Some(options)).await
        });
        let stored = answer::stored(call, xml::read_messages(put.await?.body()))?;
        if delay == 0 {
            self.own_messages.notify(queue);
        }
        Ok(stored)
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        let call = Call::once("get messages", queue);
        limits::check_get(queue, &options)?;
        let visibility = convert::seconds(call, "a visibility timeout", options.visibility)?;
        let get = call.run(async {
            let options = QueueClientReceiveMessagesOptions {
                number_of_messages: Some(options.count.cast_signed()),
                visibility_timeout: Some(visibility),
                method_options: with_limit(MAX_ANSWER_BYTES),
                ..QueueClientReceiveMessagesOptions::default()
            };
            self.connection.queue(queue)?.receive_messages(Some(options)).await
        });
        let raw = answer::complete(call, xml::read_messages(get.await?.body()))?;
        let until = self.connection.runtime().now() + options.visibility;
        Ok(Received::new(
            raw.into_iter().filter_map(|message| answer::leased(queue, message, until)).collect(),
        ))
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        let call = Call::reads("peek messages", queue);
        limits::check_peek(queue, count)?;
        let peek = call.run_repeatable(self.connection.runtime(), || async {
            let options = QueueClientPeekMessagesOptions {
                number_of_messages: Some(count.cast_signed()),
                method_options: with_limit(MAX_ANSWER_BYTES),
                ..QueueClientPeekMessagesOptions::default()
            };
            self.connection.queue(queue)?.peek_messages(Some(options)).await
        });
        let raw = answer::complete(call, xml::read_messages(peek.await?.body()))?;
        Ok(raw.into_iter().filter_map(|message| answer::peeked(queue, message)).collect())
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        let call = Call::once("update message", queue);
        answer::check_id(call, message)?;
        limits::check_update(queue, &change)?;
        let visibility = convert::seconds(call, "a visibility timeout", change.visibility)?;
        let body = change.text.as_deref().map(|text| Bytes::from(xml::write_message(text)));
        let update = call.run(async {
            let options = QueueClientUpdateMessageOptions {
                queue_message: body.map(Into::into),
                method_options: with_receipt(&message.receipt),
                ..QueueClientUpdateMessageOptions::default()
            };
            let queue = self.connection.queue(queue)?;
            queue.update_message(message.id.as_str(), PLACEHOLDER, visibility, Some(options)).await
        });
        let answer = update.await?;
        if visibility == 0 {
            self.own_messages.notify(queue);
        }
        let headers = answer.headers();
        let receipt = headers
            .get_optional_str(&RECEIPT)
            .filter(|receipt| !receipt.is_empty())
            .ok_or_else(|| call.unreadable("the answer has no new receipt"))?;
        let next_visible = convert::date(headers.get_optional_str(&"x-ms-time-next-visible".into()));
        Ok(Updated::new(PopReceipt::new(receipt), next_visible))
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        _late: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        let call = Call::once("delete message", queue);
        answer::check_id(call, message)?;
        let delete = call.run(async {
            let options = QueueClientDeleteMessageOptions {
                method_options: with_receipt(&message.receipt),
                ..QueueClientDeleteMessageOptions::default()
            };
            let queue = self.connection.queue(queue)?;
            queue.delete_message(message.id.as_str(), PLACEHOLDER, Some(options)).await
        });
        delete.await.map(drop)
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        let call = Call::repeatable("clear queue", queue);
        let mut round = 1;
        loop {
            match call.run(async { self.connection.queue(queue)?.clear(None).await }).await {
                // The service expects the call to be repeated until it is complete.
                Err(error) if error.kind() == StoreErrorKind::Timeout && round < CLEAR_ROUNDS => round += 1,
                answer => return answer.map(drop),
            }
        }
    }

    fn powers(self: Arc<Self>) -> QueuePowers {
        QueuePowers {
            guarantees: Guarantees { counts_deliveries: true, ..Guarantees::default() },
            batches: Some(Arc::clone(&self) as _),
            permissions: Some(Arc::clone(&self) as _),
            arrivals: Some(Arc::clone(&self) as _),
            detach: Some(self),
            ..QueuePowers::default()
        }
    }
}

#[async_trait]
impl Batches for AzureQueues {
    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Arc<[PutMessage]>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let put = |message| self.put(queue, message);
        put_each(queue, messages, CONCURRENT_REQUESTS, Instant::now(), put).await
    }

    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        late: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        let deletions = futures_util::stream::iter(messages)
            .map(|message| async move { self.delete(queue, &message, late).await });
        deletions.buffered(CONCURRENT_REQUESTS).collect().await
    }
}

#[async_trait]
impl Permissions<QueueName> for AzureQueues {
    async fn check_access(&self, queue: &QueueName, access: Access) -> Result<(), StoreError> {
        probe::queue(&self.connection, queue, access).await
    }
}

impl Detach<dyn QueueStore> for AzureQueues {
    fn detached(&self) -> Arc<dyn QueueStore> {
        let own_messages = Arc::clone(&self.own_messages);
        Arc::new(Self { connection: self.connection.detached(), own_messages })
    }
}

impl Arrivals for AzureQueues {
    fn subscribe(&self, queue: &QueueName) -> Subscription {
        self.own_messages.subscribe(queue)
    }

    fn announces_all(&self) -> bool {
        false
    }
}

/// Returns the delay and the time to live in seconds; −1 means forever. A time to live that the service cannot
/// express, of more than 68 years, is forever.
fn times(call: Call<'_>, message: &PutMessage) -> Result<(i32, i32), StoreError> {
    let delay = convert::seconds(call, "a delay", message.visibility_delay)?;
    let Some(ttl) = message.ttl.filter(|ttl| ttl.as_secs() < i32::MAX.unsigned_abs().into()) else {
        return Ok((delay, -1));
    };
    let ttl = convert::seconds(call, "a time to live", ttl)?;
    // After rounding up they may be equal, which the service refuses.
    Ok((delay.min(ttl - 1), ttl))
}
