//! Sending many: as few requests and commits as the storage allows.

use std::task::Poll;

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use tokio::time::Instant;

use super::queue_core::QueueCore;
use super::send::{Draft, Prepared, Sent};
use super::send_options::SendOptions;
use crate::error::{Error, ErrorKind};
use crate::message::QueueMessage;
use crate::storage::{PutOutcome, StoreError};

/// How many messages, and roughly how many bytes, go to the storage at once. While it stores them, the next are written.
const CHUNK: usize = 128;
const CHUNK_BYTES: usize = 1 << 20;
/// How many chunks are under way at once where each message is a request: one is stored while another waits for its turn.
const IN_FLIGHT: usize = 2;
/// The same where those that come while a commit is prepared take part in it.
const IN_FLIGHT_TOGETHER: usize = 8;

/// Messages that are valid, all of them.
#[derive(Debug)]
pub(super) struct Drafts(Vec<Draft>);

impl Drafts {
    /// # Errors
    /// The first message that is not valid, with its place in the list.
    pub(super) fn new<'a, M: QueueMessage>(
        messages: impl IntoIterator<Item = (&'a M, SendOptions)>,
    ) -> Result<Self, Error> {
        let draft = |(index, (message, options))| {
            Draft::new(message, options).map_err(|error| {
                let text =
                    format!("message {index} of the list, counted from 0, is not valid; none was sent");
                Error::new(error.kind(), text).with_source(error)
            })
        };
        messages.into_iter().enumerate().map(draft).collect::<Result<_, _>>().map(Self)
    }
}

impl QueueCore {
    /// Sends messages; the answers stand in their order.
    pub(super) async fn send_all<M: QueueMessage>(&self, drafts: Drafts) -> Vec<Result<Sent, Error>> {
        let Drafts(drafts) = drafts;
        let in_flight_limit = match self.store().commits_together() {
            // Places in a line are taken in the order of the list.
            _ if drafts.iter().any(Draft::is_in_order) => 1,
            true => IN_FLIGHT_TOGETHER,
            false => IN_FLIGHT,
        };
        let mut answers = Vec::with_capacity(drafts.len());
        let mut drafts = drafts.into_iter();
        let mut in_flight = FuturesOrdered::new();
        loop {
            let chunk = self.render_chunk::<M>(&mut drafts);
            if chunk.is_empty() {
                break;
            }
            in_flight.push_back(self.dispatch_all(chunk));
            // Asked once, so that it is under way while the next chunk is written.
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

    fn render_chunk<M: QueueMessage>(
        &self,
        drafts: &mut impl Iterator<Item = Draft>,
    ) -> Vec<Result<Prepared, Error>> {
        let mut bytes = 0;
        let mut chunk = Vec::with_capacity(CHUNK.min(drafts.size_hint().0));
        while chunk.len() < CHUNK
            && bytes < CHUNK_BYTES
            && let Some(draft) = drafts.next()
        {
            let prepared = self.render::<M>(draft);
            bytes += prepared.as_ref().map_or(0, |prepared| prepared.put.text.len());
            chunk.push(prepared);
        }
        chunk
    }

    /// Stores those that could be written; the answers stand in the order of the messages.
    pub(crate) async fn dispatch_all(
        &self,
        mut prepared: Vec<Result<Prepared, Error>>,
    ) -> Vec<Result<Sent, Error>> {
        let started = Instant::now();
        for one in &mut prepared {
            // Without its blob a message must not be stored.
            if let Ok(ready) = one
                && ready.blob.is_some()
                && let Err(error) = self.store_blob(ready, started).await
            {
                *one = Err(error);
            }
        }
        let puts = prepared.iter().flatten().map(|one| one.put.clone()).collect();
        self.calm(started).await;
        let mut outcomes = self.store().put_all(&self.name, puts).await.into_iter();
        let mut answers = Vec::with_capacity(prepared.len());
        for one in prepared {
            answers.push(match one {
                Ok(one) => match outcomes.next() {
                    Some(Ok(outcome)) if one.in_order.is_none() => {
                        let stored = one.stored(outcome.message, false);
                        Ok(one.sent(stored))
                    }
                    outcome => self.answer(one, outcome, started).await,
                },
                Err(error) => Err(error),
            });
        }
        answers
    }

    /// What became of a message, by what the storage said of it.
    async fn answer(
        &self,
        one: Prepared,
        outcome: Option<Result<PutOutcome, StoreError>>,
        started: Instant,
    ) -> Result<Sent, Error> {
        match outcome {
            Some(Ok(outcome)) => {
                let stored = one.stored(outcome.message, false);
                self.acknowledged(one, stored).await
            }
            Some(Err(error)) => {
                let stored = self.put_patiently(&one, Some(error), started).await?;
                self.acknowledged(one, stored).await
            }
            None => Err(Error::new(ErrorKind::Unknown, "the storage gave no answer for this message")),
        }
    }
}
