//! The bare loop on the official SDK: what a program without a framework would do.

use std::sync::Arc;

use azure_core::http::RequestContent;
use azure_core::http::{ClientOptions, Transport, Url, XmlFormat};
use azure_storage_blob::{BlobContainerClient, BlobServiceClient, BlobServiceClientOptions};
use azure_storage_queue::models::{
    QueueClientReceiveMessagesOptions, QueueClientSendMessageOptions, QueueMessage, ReceivedMessage,
};
use azure_storage_queue::{QueueClient, QueueServiceClient, QueueServiceClientOptions};
use bytes::Bytes;
use jobqueue_bench_harness::Result;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::job::Thumbnail;
use crate::sign::SharedKey;
use crate::system::Place;

/// The maximum number of messages of one request.
const MOST: usize = 32;
/// The visibility timeout, that of jobqueue's default.
const VISIBILITY: i32 = 30;

#[derive(Clone)]
pub(crate) struct Sdk {
    queue: Arc<QueueClient>,
    /// The container of the payloads that are not in messages.
    blobs: Option<Arc<BlobContainerClient>>,
}

impl std::fmt::Debug for Sdk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sdk").field("offloaded", &self.blobs.is_some()).finish_non_exhaustive()
    }
}

impl Sdk {
    pub(crate) async fn open(place: &Place, queue: &str, offloaded: bool) -> Result<Self> {
        let options = || ClientOptions {
            per_try_policies: vec![Arc::new(SharedKey::of_azurite())],
            transport: place.in_process.clone().map(Transport::new),
            ..ClientOptions::default()
        };
        let queue_options = QueueServiceClientOptions { client_options: options(), ..Default::default() };
        let queues = QueueServiceClient::new(Url::parse(&place.queues)?, None, Some(queue_options))?;
        let client = queues.queue_client(queue)?;
        client.create(None).await?;
        let blobs = if offloaded {
            let blob_options = BlobServiceClientOptions { client_options: options(), ..Default::default() };
            let service = BlobServiceClient::new(Url::parse(&place.blobs)?, None, Some(blob_options))?;
            let container = service.blob_container_client(queue);
            container.create(None).await?;
            Some(Arc::new(container))
        } else {
            None
        };
        Ok(Self { queue: Arc::new(client), blobs })
    }

    pub(crate) async fn send(&self, job: &Thumbnail) -> Result<()> {
        let json = serde_json::to_string(job)?;
        let text = match &self.blobs {
            None => json,
            Some(container) => {
                let name = uuid::Uuid::now_v7().to_string();
                container.blob_client(&name).upload(Bytes::from(json).into(), None).await?;
                name
            }
        };
        let message = QueueMessage { message_text: Some(text) };
        let message: RequestContent<QueueMessage, XmlFormat> = message.try_into()?;
        // Never expires, like a message of jobqueue.
        let options = QueueClientSendMessageOptions { message_time_to_live: Some(-1), ..Default::default() };
        self.queue.send_message(message, Some(options)).await?;
        Ok(())
    }

    /// Gets 32 messages whenever 32 places are free, until `jobs` jobs are deleted.
    pub(crate) async fn process(&self, jobs: u64, concurrency: usize) -> Result<()> {
        let slots = Arc::new(Semaphore::new(concurrency));
        let batch = MOST.min(concurrency);
        let (mut running, mut received) = (JoinSet::new(), 0);
        while received < jobs {
            let mut free = Arc::clone(&slots).acquire_many_owned(batch as u32).await?;
            let options = QueueClientReceiveMessagesOptions {
                number_of_messages: Some(batch as i32),
                visibility_timeout: Some(VISIBILITY),
                ..Default::default()
            };
            let answer = self.queue.receive_messages(Some(options)).await?.into_model()?;
            for message in answer.items.unwrap_or_default() {
                received += 1;
                let (this, slot) = (self.clone(), free.split(1));
                running.spawn(async move {
                    let _slot = slot;
                    this.handle(message).await
                });
            }
        }
        while let Some(handled) = running.join_next().await {
            handled??;
        }
        Ok(())
    }

    async fn handle(&self, message: ReceivedMessage) -> Result<()> {
        let text = message.message_text.ok_or("no text")?;
        match &self.blobs {
            None => work(&serde_json::from_str(&text)?),
            Some(container) => {
                let body = container.blob_client(&text).download(None).await?.body.collect().await?;
                work(&serde_json::from_slice(&body)?);
            }
        }
        let (id, receipt) = (message.message_id.ok_or("no id")?, message.pop_receipt.ok_or("no receipt")?);
        self.queue.delete_message(&id, &receipt, None).await?;
        if let Some(container) = &self.blobs {
            container.blob_client(&text).delete(None).await?;
        }
        Ok(())
    }

    pub(crate) async fn close(self) -> Result<()> {
        self.queue.delete(None).await?;
        if let Some(container) = self.blobs {
            container.delete(None).await?;
        }
        Ok(())
    }
}

fn work(job: &Thumbnail) {
    std::hint::black_box(job);
}
