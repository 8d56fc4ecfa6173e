//! The requests that send children, with their options and futures.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use super::Batch;
use super::children::CHUNK;
use crate::error::{Error, ErrorKind};
use crate::message::QueueMessage;
use crate::queue_core::{Queue, QueueCore, QueueOf};
use crate::send;
use crate::send::{SendItem, SendOptions, SendRequest};

/// The future of a request that sends children. It borrows the batch.
pub type ChildFuture<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;

/// One child to send: [`Batch::send`].
pub struct Child<'a, M> {
    batch: &'a mut Batch,
    message: &'a M,
    /// The queue, if it is not the queue of the type.
    queue: Option<Arc<QueueCore>>,
}

/// Many children to send: [`Batch::send_all`].
pub struct Children<'a, M, I> {
    batch: &'a mut Batch,
    children: I,
    /// The queue, if it is not the queue of the type.
    queue: Option<Arc<QueueCore>>,
    message: PhantomData<fn() -> M>,
}

impl Batch {
    /// Sends one child when the returned request is awaited, with the options of any
    /// [send](crate::Queue::send). Skips a child that an earlier start has certainly sent. Each call writes
    /// two small blobs; [`send_all`](Self::send_all) writes them once for 100 children.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::{JobError, QueueMessage, SendOptions, Storage}; use serde::{Deserialize, Serialize};
    /// # use std::time::Duration;
    /// # #[derive(Serialize, Deserialize, QueueMessage)] #[message(queue = "pages", kind = "page")] struct Page { site: String, n: u32 }
    /// # #[derive(Serialize, Deserialize, QueueMessage)] #[message(queue = "books", kind = "book")] struct Book {}
    /// # let storage = Storage::memory();
    /// let mut batch = storage.batch("book-1").await?;
    /// let cover = Page { site: "example.org".into(), n: 0 };
    /// batch.send(&cover).delay(Duration::from_secs(60)).header("tenant", "blue").await?;
    /// // One page of a site at a time, in this order.
    /// let pages = (1..=3).map(|n| Page { site: "example.org".into(), n });
    /// let each = pages.map(|page| { let site = page.site.clone(); (page, SendOptions::new().key(site)) });
    /// batch.send_all(each).in_order().await?;
    /// batch.then(&Book {}).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// The id of a child is `<batch>/<n>`, and its source is the same for all programs, unless you set them.
    /// A restart must set the same id and key; other options may differ, and a child that was sent keeps the
    /// options of its first send.
    ///
    /// # Errors
    /// As [`send_all`](Self::send_all).
    ///
    /// # Cancel safety
    /// Dropping the future is an interruption: start again with the same children.
    pub fn send<'a, M: QueueMessage>(&'a mut self, child: &'a M) -> SendRequest<Child<'a, M>> {
        SendRequest::new(Child { batch: self, message: child, queue: None })
    }

    /// Sends children when the returned request is awaited, 100 at a time, and skips children that an earlier
    /// start has certainly sent. You can call it several times, for example with different types, or with
    /// parts of a list that is still being read.
    ///
    /// The list holds messages, references to them, or pairs of a message and its [`SendOptions`]. The
    /// options of the request apply to all children; the options of a child have priority.
    ///
    /// # Errors
    /// - [`Invalid`](ErrorKind::Invalid): a message breaks a rule of its type, options contradict each other,
    ///   or the batch has too many children.
    /// - [`Conflict`](ErrorKind::Conflict): an earlier start has sent other children.
    /// - [`Rejected`](ErrorKind::Rejected), [`Unknown`](ErrorKind::Unknown) or
    ///   [`Storage`](ErrorKind::Storage): the storage failed. Start again with the same children and the same
    ///   id; no child is duplicated.
    ///
    /// # Cancel safety
    /// Dropping the future is an interruption: start again with the same children.
    pub fn send_all<'a, I, M>(&'a mut self, children: I) -> SendRequest<Children<'a, M, I>>
    where
        I: IntoIterator<Item: SendItem<M>, IntoIter: Send + 'a>,
        M: QueueMessage,
    {
        SendRequest::new(Children { batch: self, children, queue: None, message: PhantomData })
    }
}

impl<'a, M: QueueMessage> SendRequest<Child<'a, M>> {
    /// Sends the child to `queue`, a queue of the same storage, instead of the queue of its type. A queue of
    /// another storage is refused, also of one with the same blobs, and so is a queue that was opened under
    /// another name of its server. A child that an earlier start has sent stays where it is.
    pub fn to(self, queue: &Queue<M>) -> Self {
        let core = Arc::clone(queue.core());
        self.map_target(|child| Child { queue: Some(core), ..child })
    }

    /// Sets the child's id: [`SendOptions::id`]. A restart must set the same.
    pub fn id(self, id: impl Into<String>) -> Self {
        self.with(SendOptions::new().id(id))
    }
}

impl<'a, M: QueueMessage> IntoFuture for SendRequest<Child<'a, M>> {
    type Output = Result<(), Error>;
    type IntoFuture = ChildFuture<'a>;

    fn into_future(self) -> Self::IntoFuture {
        let (Child { batch, message, queue }, options, below) = self.into_target();
        Box::pin(async move {
            let (core, secret) = batch.ready_to_send(queue, QueueOf::of::<M>(), below).await?;
            let drafts = batch.drafts(&secret, &options, [message])?;
            batch.send_chunk(&core, drafts, send::render_draft::<M>).await
        })
    }
}

impl<M: QueueMessage, I> SendRequest<Children<'_, M, I>> {
    /// Sends the children to `queue`, a queue of the same storage, instead of the queue of their type: for
    /// instance to the queue of a tenant. A queue of another storage is refused, also of one with the same
    /// blobs, and so is a queue that was opened under another name of its server. Children that an earlier
    /// start has sent stay where they are.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::{QueueMessage, Storage}; use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize, QueueMessage)] #[message(queue = "pages", kind = "page")] struct Page { n: u32 }
    /// # #[derive(Serialize, Deserialize, QueueMessage)] #[message(queue = "books", kind = "book")] struct Book {}
    /// # let storage = Storage::memory();
    /// let urgent = storage.queue_named::<Page>("pages-urgent").await?;
    /// let mut batch = storage.batch("book-2").await?;
    /// batch.send_all((1..=3).map(|n| Page { n })).to(&urgent).await?;
    /// batch.then(&Book {}).await?;
    /// assert_eq!(urgent.approximate_len().await?, 3);
    /// # Ok(()) }
    /// ```
    pub fn to(self, queue: &Queue<M>) -> Self {
        let core = Arc::clone(queue.core());
        self.map_target(|children| Children { queue: Some(core), ..children })
    }
}

impl<'a, I, M> IntoFuture for SendRequest<Children<'a, M, I>>
where
    I: IntoIterator<Item: SendItem<M>, IntoIter: Send + 'a>,
    M: QueueMessage,
{
    type Output = Result<(), Error>;
    type IntoFuture = ChildFuture<'a>;

    fn into_future(self) -> Self::IntoFuture {
        let (Children { batch, children, queue, .. }, options, below) = self.into_target();
        let mut children = children.into_iter();
        Box::pin(async move {
            if options.identity().0.is_some() {
                let text = "an id belongs to one message; set ids in the options of each child";
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            let (core, secret) = batch.ready_to_send(queue, QueueOf::of::<M>(), below).await?;
            loop {
                let drafts = batch.drafts(&secret, &options, children.by_ref().take(CHUNK))?;
                if drafts.is_empty() {
                    return Ok(());
                }
                batch.send_chunk(&core, drafts, send::render_draft::<M>).await?;
            }
        })
    }
}

jobqueue_storage::debug_fields! {
    /// Leaves out the message: it may be confidential.
    Child<'a, M> { batch }
    Children<'a, M, I> { batch }
}
