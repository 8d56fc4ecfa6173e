//! Sends many messages with as few requests and commits as the storage allows.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use futures_util::StreamExt;
use futures_util::stream::{self, FuturesOrdered};
use tokio::time::Instant;

use super::dispatch::{emit_sent, store_blob};
use super::groups::put_by_group;
use super::options::SendOptions;
use super::prepare::{Draft, Prepared, Purpose, Render};
use super::put::{put_all, unanswered};
use super::resend::remove_unsent;
use super::sent::Sent;
use super::silence::{Silence, not_tried};
use crate::error::{Error, ErrorKind};
use crate::group_log::{self, Announced, Confirmation};
use crate::message::QueueMessage;
use crate::queue_core::QueueCore;
use crate::sync::lock;
use crate::trace::{OpenSpan, Step};

/// The maximum number of messages in a chunk. While one chunk is stored, the next is encoded.
const CHUNK_MESSAGES: usize = 128;
const CHUNK_BYTES: usize = 1 << 20;
/// The number of concurrent chunks on storages with one request per message: one is stored while another
/// waits.
const CHUNKS_IN_FLIGHT: usize = 2;
/// The number of concurrent chunks on storages where operations share a commit.
const CHUNKS_IN_SHARED_COMMITS: usize = 8;
/// The number of payloads of a chunk that are uploaded at the same time. With two chunks in flight, up to
/// eight uploads share the connection to the service.
const CONCURRENT_UPLOADS: usize = 4;

#[diagnostic::on_unimplemented(
    message = "`{Self}` is no message of type `{M}`",
    label = "expected `{M}`, `&{M}`, or a pair of one of them and `SendOptions`"
)]
/// A message in a list to send: `M`, `&M`, or a pair of either and its own [`SendOptions`].
pub trait SendItem<M>: sealed::Item<M> {
    #[doc(hidden)]
    fn parts(&self) -> (&M, Option<&SendOptions>);
}

mod sealed {
    /// Restricts [`SendItem`](super::SendItem) to the types of this module.
    pub trait Item<M> {}
}

impl<M: QueueMessage> sealed::Item<M> for M {}
impl<M: QueueMessage> SendItem<M> for M {
    fn parts(&self) -> (&M, Option<&SendOptions>) {
        (self, None)
    }
}

impl<M: QueueMessage> sealed::Item<M> for &M {}
impl<M: QueueMessage> SendItem<M> for &M {
    fn parts(&self) -> (&M, Option<&SendOptions>) {
        (self, None)
    }
}

impl<M: QueueMessage> sealed::Item<M> for (M, SendOptions) {}
impl<M: QueueMessage> SendItem<M> for (M, SendOptions) {
    fn parts(&self) -> (&M, Option<&SendOptions>) {
        (&self.0, Some(&self.1))
    }
}

impl<M: QueueMessage> sealed::Item<M> for (&M, SendOptions) {}
impl<M: QueueMessage> SendItem<M> for (&M, SendOptions) {
    fn parts(&self) -> (&M, Option<&SendOptions>) {
        (self.0, Some(&self.1))
    }
}

#[derive(Debug)]
pub(super) struct Drafts(Vec<Draft>);

impl Drafts {
    /// Validates messages. The options of a message have priority over the common ones.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid): the first message that is not valid, with its place in the list.
    /// [`Rejected`](ErrorKind::Rejected), retryable: its codec cannot encode now.
    pub(crate) fn new<M: QueueMessage>(
        messages: impl IntoIterator<Item = impl SendItem<M>>,
        common: &SendOptions,
    ) -> Result<Self, Error> {
        if common.id.is_some() {
            let text = "an id belongs to one message; set ids in the options of each message";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let draft = |(index, item): (usize, _)| {
            let (message, own) = SendItem::parts(&item);
            let options = own.map_or_else(|| common.clone(), |own| own.clone().or(common.clone()));
            Draft::new(message, options).map_err(|error| {
                let retryable = error.is_retryable();
                let problem = if retryable { "cannot be sent now" } else { "is not valid" };
                let text = format!("message {index} of the list, counted from 0, {problem}; none was sent");
                Error::new(error.kind(), text).with_retryable(retryable).with_source(error)
            })
        };
        messages.into_iter().enumerate().map(draft).collect::<Result<_, _>>().map(Self)
    }
}

/// Sends messages. Returns the answers in their order.
pub(crate) async fn send_all(core: &QueueCore, drafts: Drafts, render: Render) -> Vec<Result<Sent, Error>> {
    let Drafts(drafts) = drafts;
    let in_flight_limit = if drafts.iter().any(Draft::is_in_order) {
        // The positions must be announced in the order of the list.
        1
    } else if core.store().guarantees().commits_together {
        CHUNKS_IN_SHARED_COMMITS
    } else {
        CHUNKS_IN_FLIGHT
    };
    let mut answers = Vec::with_capacity(drafts.len());
    let silence = Silence::default();
    let mut drafts = drafts.into_iter();
    let mut in_flight = FuturesOrdered::new();
    loop {
        let chunk = render_chunk(core, &mut drafts, render);
        if chunk.is_empty() {
            break;
        }
        in_flight.push_back(dispatch_chunk(core, chunk, &silence));
        // Polled once, so that it starts before the next chunk is written.
        let stored = match futures_util::poll!(in_flight.next()) {
            Poll::Ready(stored) => stored,
            Poll::Pending if in_flight.len() < in_flight_limit => None,
            Poll::Pending => in_flight.next().await,
        };
        answers.extend(stored.into_iter().flatten());
    }
    while let Some(stored) = in_flight.next().await {
        answers.extend(stored);
    }
    answers
}

fn render_chunk(
    core: &QueueCore,
    drafts: &mut impl Iterator<Item = Draft>,
    render: Render,
) -> Vec<Result<Prepared, Error>> {
    let mut bytes = 0;
    let mut chunk = Vec::with_capacity(CHUNK_MESSAGES.min(drafts.size_hint().0));
    while chunk.len() < CHUNK_MESSAGES
        && bytes < CHUNK_BYTES
        && let Some(draft) = drafts.next()
    {
        let prepared = render(core, draft, Purpose::OneOfMany);
        bytes += prepared.as_ref().map_or(0, |prepared| prepared.put.text.len());
        chunk.push(prepared);
    }
    chunk
}

/// Stores the messages that could be prepared. Returns the answers in the order of the messages.
pub(crate) async fn dispatch_all(
    core: &QueueCore,
    prepared: Vec<Result<Prepared, Error>>,
) -> Vec<Result<Sent, Error>> {
    dispatch_chunk(core, prepared, &Silence::default()).await
}

/// Like [`dispatch_all`], for a chunk of a list. Fails fast if the storage was silent for a whole send
/// budget.
async fn dispatch_chunk(
    core: &QueueCore,
    mut prepared: Vec<Result<Prepared, Error>>,
    silence: &Silence,
) -> Vec<Result<Sent, Error>> {
    let started = Instant::now();
    let kind = prepared.iter().flatten().next().map(|first| Arc::clone(&first.kind));
    let mut span = span_of_all(core, &mut prepared);
    let answers = if silence.exceeds_budget() {
        prepared.into_iter().map(|prepared| prepared.and_then(|_| Err(not_tried()))).collect()
    } else {
        span.run(pin!(store_all(core, prepared, started))).await
    };
    silence.record(started, &answers);
    let error = answers.iter().find_map(|answer| answer.as_ref().err()).map(|error| error.kind().as_str());
    span.end(None, error);
    let failed = answers.iter().filter(|answer| answer.is_err()).count();
    emit_sent(core, kind, answers.len(), failed, started, error);
    answers
}

/// Ends the spans in which the messages were created, and starts the span of their send.
fn span_of_all(core: &QueueCore, prepared: &mut [Result<Prepared, Error>]) -> OpenSpan {
    if !core.observers().trace() {
        return OpenSpan::none();
    }
    let created: Vec<_> = prepared.iter().flatten().filter_map(|message| message.span.context()).collect();
    prepared.iter_mut().flatten().for_each(|message| message.span.end(None, None));
    let (queue, messages) = (&core.name, prepared.len());
    core.observers().span(|| Step::Send { queue, id: None, messages, created: &created })
}

async fn store_all(
    core: &QueueCore,
    mut prepared: Vec<Result<Prepared, Error>>,
    started: Instant,
) -> Vec<Result<Sent, Error>> {
    let started = store_blobs(core, &mut prepared, started).await;
    if prepared.iter().flatten().any(|message| message.announcement.is_some()) {
        return Box::pin(dispatch_all_in_order(core, prepared, started)).await;
    }
    let keeps_lists = core.store().guarantees().puts_lists_whole;
    if !keeps_lists && prepared.iter().flatten().any(|message| message.put.group.is_some()) {
        return Box::pin(put_by_group(core, prepared, started)).await;
    }
    let mut ready: Vec<&mut Prepared> = prepared.iter_mut().flatten().collect();
    let mut stored = put_all(core, &mut ready, started).await.into_iter();
    let answers = prepared.into_iter().map(|prepared| {
        let prepared = prepared?;
        stored.next().unwrap_or_else(|| Err(unanswered())).map(|stored| prepared.sent(Some(stored)))
    });
    answers.collect()
}

/// Stores the blobs of messages. If a blob cannot be stored, its error replaces the message, which must not
/// be stored without it. Each stored blob restarts the send budget for the blobs and messages behind it, so
/// that an outage ends a list as soon as it would end one message, and a slow connection does not. Returns
/// the time from which the budget counts.
async fn store_blobs(
    core: &QueueCore,
    prepared: &mut [Result<Prepared, Error>],
    started: Instant,
) -> Instant {
    let started = Mutex::new(started);
    let valid =
        prepared.iter().enumerate().filter_map(|(place, message)| Some((place, message.as_ref().ok()?)));
    let with_blobs: Vec<_> = valid.filter(|(_, message)| message.blob.is_some()).collect();
    let silence = Silence::default();
    let uploads = with_blobs.into_iter().map(|(place, message)| {
        let (started, silence) = (&started, &silence);
        async move {
            let begun = *lock(started);
            match silence.guard(store_blob(core, message, begun)).await {
                Ok(next) => {
                    *lock(started) = next;
                    None
                }
                Err(error) => Some((place, error)),
            }
        }
    });
    let uploads: Vec<_> = uploads.collect();
    if !uploads.is_empty() {
        let uploads = stream::iter(uploads).buffer_unordered(CONCURRENT_UPLOADS);
        let failed: Vec<_> = uploads.filter_map(std::future::ready).collect().await;
        for (place, error) in failed {
            prepared[place] = Err(error);
        }
    }
    *lock(&started)
}

/// Like [`dispatch_all`], for a list with messages of FIFO groups: announces all positions before the first
/// message is put, and confirms them after the last put.
async fn dispatch_all_in_order(
    core: &QueueCore,
    prepared: Vec<Result<Prepared, Error>>,
    started: Instant,
) -> Vec<Result<Sent, Error>> {
    // With `false` for jobs that are done already.
    let mut announced = announce_all(core, prepared).await;
    let mut ready: Vec<&mut Prepared> =
        announced.iter_mut().flatten().filter(|(_, to_put)| *to_put).map(|(message, _)| message).collect();
    let mut stored = put_all(core, &mut ready, started).await;
    let results = || ready.iter().zip(&stored).enumerate();
    let successes =
        results().filter_map(|(at, (message, put))| Some((at, message.announcement?, put.as_ref().ok()?)));
    let to_confirm = successes.map(|(at, announcement, stored)| {
        (at, Confirmation { announcement, is_single: !stored.may_be_duplicated })
    });
    let (places, to_confirm): (Vec<_>, Vec<_>) = to_confirm.unzip();
    let refused = results().filter(|(_, (_, put))| put.as_ref().is_err_and(Error::is_rejected));
    let to_retract: Vec<_> = refused.filter_map(|(_, (message, _))| message.announcement).collect();
    for (at, confirmed) in places.into_iter().zip(group_log::confirm(&core.groups, &to_confirm).await) {
        if let Err(error) = confirmed {
            stored[at] = Err(error);
        }
    }
    group_log::retract(&core.groups, &to_retract).await;
    let mut stored = stored.into_iter();
    let answers = announced.into_iter().map(|announced| {
        let (message, to_put) = announced?;
        if !to_put {
            return Ok(message.sent(None));
        }
        stored.next().unwrap_or_else(|| Err(unanswered())).map(|stored| message.sent(Some(stored)))
    });
    answers.collect()
}

/// Announces the positions of FIFO messages. Returns each message with `true` if it must be put, and with
/// `false` if its job is done already.
async fn announce_all(
    core: &QueueCore,
    prepared: Vec<Result<Prepared, Error>>,
) -> Vec<Result<(Prepared, bool), Error>> {
    let mut announcements: Vec<_> =
        prepared.iter().flatten().filter_map(|message| message.announcement).collect();
    let answers = group_log::announce(&core.groups, &mut announcements).await;
    let mut answers = announcements.into_iter().zip(answers);
    let (mut announced, mut unsent) = (Vec::with_capacity(prepared.len()), Vec::new());
    for message in prepared {
        let mut ready = match message {
            Ok(ready) => ready,
            Err(error) => {
                announced.push(Err(error));
                continue;
            }
        };
        let answer = match ready.announcement.and_then(|_| answers.next()) {
            Some((announcement, answer)) => {
                answer.and_then(|answer| ready.enter(announcement).map(|()| answer))
            }
            None => Ok(Announced::Entered),
        };
        announced.push(match answer {
            Ok(answer) => Ok((ready, answer == Announced::Entered)),
            Err(error) => {
                unsent.push(ready);
                Err(error)
            }
        });
    }
    let done = announced.iter().flatten().filter(|(_, to_put)| !to_put).map(|(message, _)| message);
    remove_unsent(core, unsent.iter().chain(done)).await;
    announced
}
