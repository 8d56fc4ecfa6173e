//! The request to send: collects options, and sends when it is awaited.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::dispatch::dispatch;
use super::many::{Drafts, SendItem, send_all};
use super::options::SendOptions;
use super::prepare::{Draft, Purpose, Render, render_draft};
use super::sent::{SendAnswers, Sent};
use super::unique::{SendUniqueOutcome, UniqueKind, send_unique};
use crate::error::{Error, ErrorKind};
use crate::message::QueueMessage;
use crate::queue_core::{Queue, QueueCore, wait_until_below};

/// The future of a [`SendRequest`]. It owns its data: it borrows neither the queue nor the message.
pub type SendFuture<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// A send that begins when it is awaited. [`Queue::send`] and [`Queue::send_all`] return it.
///
/// The methods set the options of [`SendOptions`]; [`with`](Self::with) accepts options as data. `T` is the
/// kind of send:
///
/// | made by | `T` | the answer |
/// |---|---|---|
/// | [`send(&message)`](Queue::send) | [`One`] | [`Sent`] |
/// | [`send(&message).unique_for(window)`](SendRequest::unique_for) | [`Unique`] | [`SendUniqueOutcome`] |
/// | [`send_all(&messages)`](Queue::send_all) | [`All`] | [`SendAnswers`] |
/// | [`batch.send(&child)`](crate::batch::Batch::send) and [`batch.send_all`](crate::batch::Batch::send_all) | [`Child`](crate::batch::Child), [`Children`](crate::batch::Children) | nothing |
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use jobqueue::{QueueMessage, Storage}; use serde::{Deserialize, Serialize}; use std::time::Duration;
/// # #[derive(Serialize, Deserialize, QueueMessage)]
/// # #[message(queue = "mails", kind = "mail")] struct Mail { to: String }
/// let mails = Storage::memory().queue::<Mail>().await?;
/// let mail = Mail { to: "ada@example.org".into() };
/// let sent = mails.send(&mail).delay(Duration::from_secs(60)).header("tenant", "blue").await?;
/// println!("{} runs in a minute", sent.id());
/// # Ok(()) }
/// ```
///
/// A send can run as its own task: `tokio::spawn(mails.send(&mail).into_future())`.
///
/// # Cancel safety
/// If the future is dropped, each message may or may not be stored.
#[must_use = "a send does nothing until it is awaited"]
pub struct SendRequest<T> {
    target: T,
    options: SendOptions,
    below: Option<u64>,
}

/// One message to send.
pub struct One<'a, M> {
    pub(super) queue: &'a Queue<M>,
    pub(super) message: &'a M,
}

/// One message to send, unless a message of its key was sent within the window.
pub struct Unique<'a, M> {
    one: One<'a, M>,
    window: Duration,
}

/// Many messages to send to one queue.
pub struct All<'a, M, I> {
    queue: &'a Queue<M>,
    messages: I,
}

impl<M: QueueMessage> Queue<M> {
    /// Validates a message and stores it when the returned request is awaited. After `Ok` the message is
    /// delivered until it is settled: see the [guarantees](crate::guide::guarantees).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::{QueueMessage, Storage}; use serde::{Deserialize, Serialize}; use std::time::Duration;
    /// # #[derive(Serialize, Deserialize, QueueMessage)]
    /// # #[message(queue = "mails", kind = "mail")] struct Mail { #[message(key)] to: String }
    /// let mails = Storage::memory().queue::<Mail>().await?;
    /// let mail = Mail { to: "ada@example.org".into() };
    /// mails.send(&mail).await?;
    /// mails.send(&mail).delay(Duration::from_secs(60)).ttl(Duration::from_secs(3600)).await?;
    /// assert!(mails.send(&mail).unique_for(Duration::from_secs(60)).await?.is_sent());
    /// assert_eq!(mails.approximate_len().await?, 3);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// - [`is_rejected`](Error::is_rejected): the message is certainly not stored.
    /// - [`is_outcome_unknown`](Error::is_outcome_unknown): the message may be stored. Send it again under
    ///   the same id ([`SendOptions::id`]), and make effects idempotent by id.
    /// - [`Invalid`](crate::ErrorKind::Invalid): the message breaks a rule of its type, or options contradict
    ///   each other.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may or may not be stored.
    pub fn send<'a>(&'a self, message: &'a M) -> SendRequest<One<'a, M>> {
        SendRequest::new(One { queue: self, message })
    }

    /// Sends many messages when the returned request is awaited, with as few requests and commits as the
    /// storage allows. If a message breaks a rule of its type, none is sent. Otherwise each message has its
    /// own answer, in order; a message that is too large fails alone.
    ///
    /// The list holds messages, references to them, or pairs of a message and its [`SendOptions`]. The
    /// options of the request apply to all messages; the options of a message have priority. Messages [in
    /// order](SendRequest::in_order) get their positions in the order of the list.
    ///
    /// Use the [answers](SendAnswers): `?` on the call alone passes on none of them.
    ///
    /// All messages are validated and encoded when the request is first awaited; only the encoded form is
    /// kept until it is stored. When no message could be stored for 30 seconds, the rest of the list is not
    /// tried: each of its answers is [`Rejected`](crate::ErrorKind::Rejected). The list is stored in chunks of
    /// up to 128 messages. The messages of a chunk that a slow storage did not accept within 30 seconds are
    /// rejected too.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::{QueueMessage, SendOptions, Storage}; use serde::{Deserialize, Serialize}; use std::time::Duration;
    /// # #[derive(Serialize, Deserialize, QueueMessage)]
    /// # #[message(queue = "mails", kind = "mail")] struct Mail { to: String }
    /// let mails = Storage::memory().queue::<Mail>().await?;
    /// let letters = [Mail { to: "ada@example.org".into() }, Mail { to: "bob@example.org".into() }];
    /// let tonight = Duration::from_secs(8 * 3600);
    /// for sent in mails.send_all(&letters).delay(tonight).header("tenant", "blue").await?.into_result()? {
    ///     println!("{}", sent.id());
    /// }
    /// let numbered = letters.iter().zip(1..).map(|(letter, n)| (letter, SendOptions::new().id(format!("letter-{n}"))));
    /// assert_eq!(mails.send_all(numbered).await?.len(), 2);
    /// # assert_eq!(mails.approximate_len().await?, 4);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid): the first message that breaks a rule, with its place in the
    /// list; or an [id](SendOptions::id) that all messages would share. If the options of one message
    /// contradict each other, only this message fails.
    ///
    /// # Cancel safety
    /// If the future is dropped, each message may or may not be stored.
    pub fn send_all<I>(&self, messages: I) -> SendRequest<All<'_, M, I>>
    where
        I: IntoIterator,
        I::Item: SendItem<M>,
    {
        SendRequest::new(All { queue: self, messages })
    }
}

impl<T> SendRequest<T> {
    pub(crate) fn new(target: T) -> Self {
        Self { target, options: SendOptions::new(), below: None }
    }

    pub(crate) fn map_target<U>(self, map: impl FnOnce(T) -> U) -> SendRequest<U> {
        SendRequest { target: map(self.target), options: self.options, below: self.below }
    }

    /// Returns the parts of the request: the target, the options, and the length below which the queue must
    /// be.
    pub(crate) fn into_target(self) -> (T, SendOptions, Option<u64>) {
        (self.target, self.options, self.below)
    }

    fn set(mut self, set: impl FnOnce(SendOptions) -> SendOptions) -> Self {
        self.options = set(self.options);
        self
    }

    /// Applies options as data. A value that they set replaces the former one; headers are added.
    pub fn with(self, options: SendOptions) -> Self {
        self.set(|before| options.or(before))
    }

    /// Hides the message for this time: [`SendOptions::delay`].
    pub fn delay(self, delay: Duration) -> Self {
        self.set(|options| options.delay(delay))
    }

    /// Hides the message until this time: [`SendOptions::at`].
    pub fn at(self, moment: SystemTime) -> Self {
        self.set(|options| options.at(moment))
    }

    /// Removes the message after this time, processed or not: [`SendOptions::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        self.set(|options| options.ttl(ttl))
    }

    /// Sets the key instead of the field marked `key`: [`SendOptions::key`].
    pub fn key(self, key: impl Into<String>) -> Self {
        self.set(|options| options.key(key))
    }

    /// Sets the sender: [`SendOptions::source`].
    pub fn source(self, source: impl Into<Arc<str>>) -> Self {
        self.set(|options| options.source(source))
    }

    /// Adds an attribute to the event: [`SendOptions::header`].
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.set(|options| options.header(name, value))
    }

    /// Keeps the order among the messages of the key: [`SendOptions::in_order`].
    pub fn in_order(self) -> Self {
        self.set(SendOptions::in_order)
    }

    jobqueue_storage::setters! {
        /// Waits until the queue has fewer than `mark` messages, like [`Queue::wait_until_below`], and then
        /// sends. Several producers that wait for the same mark may each exceed it by one request. Running
        /// jobs count: a handler that waits for its own queue may wait for itself. If the length cannot be
        /// read, and waiting does not help, the send is [`Rejected`](crate::ErrorKind::Rejected).
        when_below(mark: u64) => below;
    }
}

impl<'a, M: QueueMessage> SendRequest<One<'a, M>> {
    /// Sets the job's id: [`SendOptions::id`].
    pub fn id(self, id: impl Into<String>) -> Self {
        self.set(|options| options.id(id))
    }

    /// Sends the message unless a message of the same kind and key was sent to this queue within `window`, by
    /// any process.
    ///
    /// The window begins when the first message is stored, and ends after its time. The window does not end
    /// early when the job is completed or dead-lettered, when the queue is deleted, or at the end of the
    /// message's [time to live](SendOptions::ttl), after which the work stays undone until the window is
    /// over: choose a `ttl` that is no shorter. [`cancel_unique`](Queue::cancel_unique) and
    /// [`clear`](Queue::clear) do end it. The clocks of senders must agree within five minutes, and to a
    /// fraction of the window.
    ///
    /// A sender that dies between claiming the key and recording its message holds up each call by at most 45
    /// seconds; then one of these calls sends under the same job id and source. The window of that job is that
    /// of the sender that died, and ends when its `window` and 45 seconds have passed since its claim or the
    /// last renewal of that. After a [cancellation](Queue::cancel_unique) that died or is unknown, it is the
    /// window of the job that was to be cancelled. Then a call sends another job. A call with a shorter
    /// timeout gets the key six minutes after the claim. If the dead sender's message was stored after all,
    /// there are two messages of one job, and effects that are idempotent by id happen once. A live sender
    /// renews the key while it uploads its payload; if it has not put its message 45 seconds later, the
    /// outcome of its send is unknown. Each key keeps one small blob, which is reused.
    ///
    /// Unique work cannot be sent in a transaction of the application: a unique row in the application's own
    /// tables does the same there.
    ///
    /// The call waits for up to 90 seconds for another sender that holds the key. While the blob storage is
    /// throttled or unreachable, the call goes on for up to 45 seconds after the message is stored, to record
    /// that.
    ///
    /// # Errors
    /// The errors of [`send`](Queue::send). Also [`Invalid`](crate::ErrorKind::Invalid) if the message has no
    /// key or the window is empty, and [`Conflict`](crate::ErrorKind::Conflict), retryable, if another sender
    /// holds the key and does not finish, or has taken it over from this call.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may or may not be stored, and the key may be held for up to 45
    /// seconds. If it is dropped after the message was stored and before that was recorded, the next sender
    /// sends a second message under the same id, as after a crash: a timeout around the call should be longer
    /// than the recording takes.
    pub fn unique_for(self, window: Duration) -> SendRequest<Unique<'a, M>> {
        self.map_target(|one| Unique { one, window })
    }
}

impl<'a, M: QueueMessage> SendRequest<Unique<'a, M>> {
    /// Sets the job's id: [`SendOptions::id`].
    pub fn id(self, id: impl Into<String>) -> Self {
        self.set(|options| options.id(id))
    }
}

impl<M: QueueMessage> IntoFuture for SendRequest<One<'_, M>> {
    type Output = Result<Sent, Error>;
    type IntoFuture = SendFuture<Sent>;

    fn into_future(self) -> Self::IntoFuture {
        let One { queue, message } = self.target;
        let (core, below) = (Arc::clone(queue.core()), self.below);
        let draft = Draft::new(message, self.options);
        send_one(core, draft, below, render_draft::<M>)
    }
}

impl<M: QueueMessage> IntoFuture for SendRequest<Unique<'_, M>> {
    type Output = Result<SendUniqueOutcome, Error>;
    type IntoFuture = SendFuture<SendUniqueOutcome>;

    fn into_future(self) -> Self::IntoFuture {
        let Unique { one: One { queue, message }, window } = self.target;
        let (core, below) = (Arc::clone(queue.core()), self.below);
        let draft = Draft::new(message, self.options);
        send_one_unique(core, draft, window, below, UniqueKind::of::<M>())
    }
}

impl<M, I> IntoFuture for SendRequest<All<'_, M, I>>
where
    M: QueueMessage,
    I: IntoIterator,
    I::Item: SendItem<M>,
{
    type Output = Result<SendAnswers, Error>;
    type IntoFuture = SendFuture<SendAnswers>;

    fn into_future(self) -> Self::IntoFuture {
        let All { queue, messages } = self.target;
        let (core, below) = (Arc::clone(queue.core()), self.below);
        // Encoded before the first await: the future is `Send`, whatever the iterator borrows.
        let drafts = Drafts::new(messages, &self.options);
        send_many(core, drafts, below, render_draft::<M>)
    }
}

// The futures of sends do not depend on the type of the message, so that their code is generated once, in
// this crate.

fn send_one(
    core: Arc<QueueCore>,
    draft: Result<Draft, Error>,
    below: Option<u64>,
    render: Render,
) -> SendFuture<Sent> {
    Box::pin(async move {
        let draft = draft?;
        ready_to_send(&core, below).await?;
        let prepared = render(&core, draft, Purpose::One)?;
        dispatch(&core, prepared).await
    })
}

fn send_one_unique(
    core: Arc<QueueCore>,
    draft: Result<Draft, Error>,
    window: Duration,
    below: Option<u64>,
    kind: UniqueKind,
) -> SendFuture<SendUniqueOutcome> {
    Box::pin(async move {
        let draft = draft?.unique_for(window, core.runtime())?;
        ready_to_send(&core, below).await?;
        send_unique(&core, draft, window, kind).await
    })
}

fn send_many(
    core: Arc<QueueCore>,
    drafts: Result<Drafts, Error>,
    below: Option<u64>,
    render: Render,
) -> SendFuture<SendAnswers> {
    Box::pin(async move {
        let drafts = drafts?;
        ready_to_send(&core, below).await?;
        Ok(SendAnswers(send_all(&core, drafts, render).await))
    })
}

jobqueue_storage::debug_fields! {
    /// Leaves out the messages: they may be confidential.
    SendRequest<T> { options }
    One<'a, M> { queue }
    Unique<'a, M> { queue = one.queue, window }
    All<'a, M, I> { queue }
}

/// Waits until the queue is short enough, if requested, and reads the current settings.
pub(crate) async fn ready_to_send(core: &QueueCore, below: Option<u64>) -> Result<(), Error> {
    if let Some(mark) = below {
        // Boxed, because few sends need it.
        Box::pin(wait_until_below(core, mark)).await.map_err(|error| {
            let text = "the message is not stored: the length of the queue could not be read";
            Error::new(ErrorKind::Rejected, text).with_source(error)
        })?;
    }
    core.fresh_settings().await;
    Ok(())
}
