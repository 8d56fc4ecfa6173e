//! A queue without its message type, as operators and relays open it: sends events, inspects messages, and
//! opens the dead letters.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::claim_check::{ClaimChecks, DEFAULT_MAX_PAYLOAD_BYTES};
use crate::clock::parse_rfc3339;
use crate::dead_letters::DeadLetterQueue;
use crate::delivery::{Incoming, Kinds, LeasedJob, inspect};
use crate::envelope::{Envelope, StoredReference};
use crate::error::{Error, ErrorKind};
use crate::group_log::{forget_message, is_in_order};
use crate::job::outcome::chain;
use crate::message::MessageDefaults;
use crate::queue_core::{
    QueueCore, QueueCoreOptions, RESCAN_SECONDS, UNCERTAIN_END, check_length, create_queue, payload_error,
};
use crate::runtime::Runtime;
use crate::send::{Purpose, SendOptions, Sent, dispatch, mark_copy, new_id, prepare_envelope};
use crate::storage::{
    LeasedMessage, MAX_MESSAGES, QueueName, Received, Storage, StoreError, StoreErrorKind, Tries,
};

/// The number of messages that an inspection puts back concurrently.
const CONCURRENT_RELEASES: usize = 16;
/// The reason if a request of an inspection failed and may have leased messages.
const ANSWER_LOST: &str =
    "a request for messages failed and may have hidden some until their lease is over; try again then";

/// The kinds and versions of all messages.
const EVERY_KIND: Kinds<'static> = Kinds {
    of_raw: None,
    find: &|_: &str| Some((u32::MAX, MessageDefaults::new())),
    unknown: "it is of no kind",
};

/// A queue that was opened without its message type.
#[derive(Debug)]
pub struct UntypedQueue {
    core: Arc<QueueCore>,
}

impl UntypedQueue {
    /// Creates a queue without settings, and without the positions in order that a deleted queue of this name
    /// has left. Returns false if it exists.
    pub async fn create(storage: &Storage, name: &QueueName) -> Result<bool, Error> {
        match storage.queues().queue_metadata(name).await {
            Err(e) if e.kind() == StoreErrorKind::QueueNotFound => Ok(create_queue(storage, name).await?),
            found => Ok(found.map(|_| false)?),
        }
    }

    /// Opens an existing queue. Messages that it writes name `operator`.
    pub async fn open(storage: &Storage, queue: &str, operator: &Arc<str>) -> Result<Self, Error> {
        Self::open_with(storage, queue, operator, DEFAULT_MAX_PAYLOAD_BYTES).await
    }

    /// Opens an existing queue for payloads of at most `max_payload_bytes`.
    pub(crate) async fn open_with(
        storage: &Storage,
        queue: &str,
        operator: &Arc<str>,
        max_payload_bytes: u64,
    ) -> Result<Self, Error> {
        let worker = Arc::clone(operator);
        let options = QueueCoreOptions { worker, max_payload_bytes, ..QueueCoreOptions::default() };
        Ok(Self { core: QueueCore::open_existing(storage, QueueName::new(queue)?, options).await? })
    }

    /// Returns the dead letters of the queue.
    pub fn dead_letters(&self) -> Result<DeadLetterQueue, Error> {
        DeadLetterQueue::new(Arc::clone(&self.core), "")
    }

    /// Returns the version of payloads without one, if the metadata of the queue sets it.
    pub async fn raw_version(&self) -> Option<u32> {
        self.core.fresh_settings().await.raw_version
    }

    /// Returns the event with the id, source and key of the options. An event without an id gets a new id.
    pub fn identify(
        runtime: &Runtime,
        mut event: Envelope,
        options: &SendOptions,
    ) -> Result<Envelope, Error> {
        let (id, source, key) = options.identity();
        event.id = id.map(Into::into).unwrap_or(event.id);
        event.source = source.unwrap_or(event.source);
        event.key = key.map(str::to_owned).or(event.key);
        if event.id.is_empty() {
            event.id = new_id(runtime);
        }
        check_length("id", &event.id)?;
        check_length("source", &event.source)?;
        Ok(event)
    }

    /// Sends an event. The event may be the text of another message, which may still exist: the new message
    /// is distinguishable from it. The time and the order in the event apply unless the options set others.
    pub async fn send(&self, mut event: Envelope, options: SendOptions) -> Result<Sent, Error> {
        mark_copy(&mut event)?;
        forget_message(&mut event);
        let named = SendOptions {
            at: event.not_before.take().map(|text| time_of(&text)).transpose()?,
            in_order: is_in_order(&event),
            ..SendOptions::new()
        };
        let options = options.or(named);
        self.core.fresh_settings().await;
        dispatch(&self.core, prepare_envelope(&self.core, event, options, Purpose::One)?).await
    }

    /// Receives up to `limit` visible messages, calls `look` once for each, and then puts them back. Stops
    /// early when `stop` fires, or when a request fails three times in a row, or is throttled for 30 seconds.
    ///
    /// # Errors
    /// The queue, or a part of it, could not be read, or a request that failed may have leased messages:
    /// `look` may have missed some of its messages. A request that is throttled counts as refused.
    pub async fn inspect(
        &self,
        limit: usize,
        stop: &CancellationToken,
        mut look: impl FnMut(&LeasedMessage),
    ) -> Result<(), Error> {
        let settings = self.core.settings();
        let (mut held, mut seen) = (Vec::<LeasedJob>::new(), HashSet::new());
        let (mut ended, mut pauses, mut in_doubt) = (Ok(()), RESCAN_SECONDS.iter(), false);
        while seen.len() < limit && !stop.is_cancelled() {
            let count = u32::try_from(limit - seen.len()).unwrap_or(u32::MAX).min(MAX_MESSAGES);
            let (received, requested) = match self.page(count, stop, &mut in_doubt).await {
                Ok(received) => received,
                Err(error) => {
                    ended = Err(error.into());
                    break;
                }
            };
            if received.messages.is_empty() {
                if !received.is_uncertain && !received.is_partial {
                    ended = self.check_none_hidden(in_doubt && !stop.is_cancelled(), seen.len()).await;
                    break;
                }
                // The queue may not be empty: retry.
                let Some(seconds) = pauses.next() else {
                    ended = Err(Error::new(ErrorKind::Storage, UNCERTAIN_END).with_retryable(true));
                    break;
                };
                let _ = stop.run_until_cancelled(tokio::time::sleep(Duration::from_secs(*seconds))).await;
                continue;
            }
            pauses = RESCAN_SECONDS.iter();
            for leased in received.messages {
                if seen.insert(leased.message.id.clone()) {
                    look(&leased);
                }
                let incoming = Incoming { leased, requested, settings: Arc::clone(&settings) };
                held.push(inspect(&self.core, incoming, &EVERY_KIND).0);
            }
        }
        let release = async |leased_job: LeasedJob| {
            if let Err(error) = leased_job.release_uncounted(Duration::ZERO).await {
                let queue = &self.core.name;
                crate::log::warn!(%queue, error = %chain(&error), "a message stays invisible until its lease is over");
            }
        };
        stream::iter(held).for_each_concurrent(CONCURRENT_RELEASES, release).await;
        ended
    }

    /// Leases up to `count` messages, none if `stop` fires between two tries. Also returns the time just
    /// before the request. Sets `in_doubt` if a request that failed may have leased messages.
    async fn page(
        &self,
        count: u32,
        stop: &CancellationToken,
        in_doubt: &mut bool,
    ) -> Result<(Received, Instant), StoreError> {
        let mut tries = Tries::brief(self.core.runtime(), 2, 2);
        loop {
            let error = match self.core.get(count, &self.core.settings()).await {
                Ok(received) => return Ok(received),
                Err(error) => error,
            };
            // A gateway alone could have passed on a success. Otherwise each look at a busy queue would fail.
            *in_doubt |= error.is_ambiguous() && error.kind() != StoreErrorKind::Throttled;
            let again = stop.run_until_cancelled(tries.failed(error)).await;
            match again {
                Some(again) => again?,
                None => return Ok((Received::default(), Instant::now())),
            }
        }
    }

    /// Fails if it is `in_doubt` whether messages were leased unseen, unless the queue has only the `seen`.
    async fn check_none_hidden(&self, in_doubt: bool, seen: usize) -> Result<(), Error> {
        if !in_doubt {
            return Ok(());
        }
        let properties = self.core.store().queue_properties(&self.core.name).await;
        let has_others = !properties.is_ok_and(|properties| properties.approximate_count <= seen as u64);
        if has_others {
            return Err(Error::new(ErrorKind::Storage, ANSWER_LOST).with_retryable(true));
        }
        Ok(())
    }
}

/// Parses the attribute `notbefore`.
///
/// # Errors
/// [`Invalid`](ErrorKind::Invalid) if the text is not an RFC 3339 time.
pub fn time_of(not_before: &str) -> Result<SystemTime, Error> {
    let text = "the attribute `notbefore` is not an RFC 3339 time";
    parse_rfc3339(not_before).ok_or_else(|| Error::new(ErrorKind::Invalid, text))
}

/// Reads the blob of a payload or a checkpoint of a message in `queue`: at most 32 MiB.
pub async fn load_blob(
    storage: &Storage,
    queue: &QueueName,
    reference: &StoredReference,
) -> Result<Bytes, Error> {
    let claim_checks = ClaimChecks::new(storage, DEFAULT_MAX_PAYLOAD_BYTES)?;
    claim_checks.load(queue, reference, DEFAULT_MAX_PAYLOAD_BYTES).await.map_err(payload_error)
}

/// Checks that the blob of a payload of a message in `queue` exists and has the payload's length.
pub async fn check_blob(
    storage: &Storage,
    queue: &QueueName,
    reference: &StoredReference,
) -> Result<(), Error> {
    let claim_checks = ClaimChecks::new(storage, DEFAULT_MAX_PAYLOAD_BYTES)?;
    claim_checks.check(queue, reference).await.map_err(payload_error)
}
