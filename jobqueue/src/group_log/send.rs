//! Sends a message in order: announce, put, confirm.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout, timeout_at};

use super::entry::{Announcement, EntryRef, Moment, PAGE};
use super::log::{Announced, Confirmed, GroupLog, LOG_WRITES, Millis, SEND_BUDGET, SEND_PERIOD};
use super::message::restamp;
use super::store::GroupLogs;
use crate::envelope::Envelope;
use crate::envelope::headers::order::IN_ORDER;
use crate::error::{Error, ErrorKind};
use crate::runtime::Runtime;

/// The largest difference between the storage's time as two processes know it: half of the longest request
/// whose answer counts for each, and the whole seconds of the answers.
const CLOCK_ERROR: Duration = Duration::from_secs(12);

impl Announcement {
    /// Marks an event as a message of a FIFO group. Its payload may still move into a blob.
    pub(crate) fn mark(
        envelope: &mut Envelope,
        ttl: Option<Duration>,
        runtime: &Runtime,
    ) -> Result<u64, Error> {
        let invalid = |text: &str| Error::new(ErrorKind::Invalid, text);
        if ttl.is_some() {
            return Err(invalid(
                "a message that is sent in order cannot have a time to live: the messages behind it would wait for it",
            ));
        }
        envelope.insert_header(IN_ORDER, "true")?;
        restamp(envelope, runtime)
            .ok_or_else(|| invalid("the event has no space for the attributes of its order"))
    }

    /// Returns the announcement of a marked event that is about to be stored and becomes visible after
    /// `delay`.
    pub(crate) fn new(envelope: &Envelope, nonce: u64, delay: Duration) -> Result<Self, Error> {
        let text = "a send in order needs a key, and this message has none or an empty one: mark a field with #[message(key)] or set one in the options";
        let key = envelope.key.as_deref();
        let key = key.ok_or_else(|| Error::new(ErrorKind::Invalid, text))?;
        Ok(Self { entry: EntryRef::new(key, &envelope.identity()), nonce, delay, announced_at: None })
    }
}

/// An announced job whose message is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Confirmation {
    pub(crate) announcement: Announcement,
    /// True if a single request stored the message, so that it has no copies.
    pub(crate) is_single: bool,
}

/// Gives jobs their positions in the order of the list, with one write for 32 jobs of a key, and records the
/// page and the time of each. Returns one answer for each job, within the send budget even if a log does not
/// answer.
///
/// # Errors
/// For each job: the caller must not store its message.
pub(crate) async fn announce(logs: &GroupLogs, all: &mut [Announcement]) -> Vec<Result<Announced, Error>> {
    let give_up = Instant::now() + SEND_BUDGET;
    let announced_at = match logs.clock.certain_now().await {
        Ok(now) => Moment { by_storage: now.0, by_process: Instant::now() },
        Err(error) => return copies_of(refused(error), all.len()),
    };
    let mut by_key: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (place, Announcement { entry, .. }) in all.iter().enumerate() {
        by_key.entry((entry.log, entry.key)).or_default().push(place);
    }
    let listed = &*all;
    let announced = by_key.into_values().map(|places| async move {
        let group: Vec<_> = places.iter().map(|place| listed[*place]).collect();
        let answers = announce_group(logs, &group, announced_at, give_up).await;
        places.into_iter().zip(answers).collect::<Vec<_>>()
    });
    let mut announced: Vec<_> = join_all(announced).await.into_iter().flatten().collect();
    announced.sort_by_key(|(place, _)| *place);
    let answers = all.iter_mut().zip(announced).map(|(announcement, (_, answer))| match answer {
        Ok((_, Announced::Full)) => Err(full()),
        Ok((page, announced)) => {
            (announcement.entry.page, announcement.announced_at) = (page, Some(announced_at));
            Ok(announced)
        }
        Err(error) => Err(refused(error)),
    });
    let mut answers: Vec<_> = answers.collect();
    // The process may have stood still.
    if logs.clock.age(announced_at) >= SEND_PERIOD {
        retract(logs, all).await;
        let entered = answers.iter_mut().filter(|answer| matches!(answer, Ok(Announced::Entered)));
        entered.for_each(|answer| *answer = Err(refused(expired())));
    }
    answers
}

/// Announces jobs of one group. Returns the page and the answer of each.
async fn announce_group(
    logs: &GroupLogs,
    group: &[Announcement],
    announced_at: Moment,
    give_up: Instant,
) -> Vec<Result<(Option<u64>, Announced), Error>> {
    let mut answers = Vec::with_capacity(group.len());
    for part in group.chunks(PAGE) {
        let announced = timeout_at(give_up, logs.announce(part, Millis(announced_at.by_storage))).await;
        // Later jobs of the list must not overtake those that are refused.
        match announced.unwrap_or_else(|_| Err(unanswered())) {
            Ok((page, announced)) => {
                let is_full = announced.contains(&Announced::Full);
                answers.extend(announced.into_iter().map(|announced| Ok((page, announced))));
                if is_full {
                    answers.resize_with(group.len(), || Ok((page, Announced::Full)));
                    break;
                }
            }
            Err(error) => {
                answers.extend(copies_of(error, group.len() - answers.len()));
                break;
            }
        }
    }
    answers
}

/// Confirms that the messages of announced jobs are stored.
///
/// # Errors
/// For each job: the send is not acknowledged, although its message is stored.
pub(crate) async fn confirm(logs: &GroupLogs, all: &[Confirmation]) -> Vec<Result<(), Error>> {
    let now = logs.clock.now().await;
    let unknown = |text: &str| Error::new(ErrorKind::Unknown, text).with_retryable(true);
    let late = |error: Error| {
        let text = "the message is stored and may run out of order; send it again under the same id";
        unknown(text).with_source(error)
    };
    let mut jobs_of_key: BTreeMap<_, usize> = BTreeMap::new();
    for Confirmation { announcement: Announcement { entry, .. }, .. } in all {
        *jobs_of_key.entry((entry.log, entry.key)).or_default() += 1;
    }
    let confirmations = all.iter().map(|confirmation| {
        let Confirmation { announcement, is_single } = *confirmation;
        let Announcement { entry, nonce, delay, announced_at } = announcement;
        let visible = Millis(now.after(delay));
        // Whatever passes the only job of its key was sent at the same time.
        let has_others = jobs_of_key.get(&(entry.log, entry.key)).is_some_and(|jobs| *jobs > 1);
        let confirm = move |log: &mut GroupLog| {
            let confirmed = log.confirm(&entry, nonce, is_single, visible);
            (confirmed, log.passed_page(entry.key))
        };
        async move {
            let (confirmed, passed) = logs.change_in(entry.page, &entry, confirm).await.map_err(late)?;
            // The clocks of the sender and of the process that skips may differ by seconds.
            let is_over = announced_at.is_some_and(|at| logs.clock.age(at) + CLOCK_ERROR >= SEND_PERIOD);
            if confirmed == Confirmed::Gone {
                return Err(unknown(
                    "the log of the key no longer knows the message: the queue was cleared, or the job has ended",
                ));
            }
            logs.seal(&entry, passed).await.map_err(late)?;
            if has_others && is_over { Err(late(expired())) } else { Ok(()) }
        }
    });
    join_all(confirmations).await
}

/// Removes announcements whose messages are certainly not stored. If that fails or takes too long, the jobs
/// behind them skip them.
pub(crate) async fn retract(logs: &GroupLogs, all: &[Announcement]) {
    let retractions = all.iter().map(|announcement| {
        let Announcement { entry, nonce, .. } = *announcement;
        async move { logs.change_in(entry.page, &entry, move |log| log.retract(&entry, nonce)).await }
    });
    // The answer of the send waits for this, and so do those of the other messages of its list.
    let Ok(answers) = timeout(LOG_WRITES, join_all(retractions)).await else {
        crate::log::debug!(queue = %logs.queue, "announced positions were not removed in time; the jobs behind them will skip them");
        return;
    };
    for answer in answers {
        if let Err(error) = answer {
            crate::log::debug!(queue = %logs.queue, %error, "an announced position was not removed; the jobs behind it will skip it");
        }
    }
}

fn refused(error: Error) -> Error {
    let retryable = error.is_retryable();
    Error::new(ErrorKind::Rejected, "the message is not stored: it could not be given its position")
        .with_retryable(retryable)
        .with_source(error)
}

fn unanswered() -> Error {
    let text = "the group log of the key did not answer for 30 seconds";
    Error::new(ErrorKind::Storage, text).with_retryable(true)
}

fn expired() -> Error {
    let text = "the position was not confirmed within two minutes, after which the jobs behind it may run";
    Error::new(ErrorKind::Storage, text).with_retryable(true)
}

fn full() -> Error {
    let text = "the message is not stored: the log of its key has no room until waiting jobs have ended; send it again later";
    Error::new(ErrorKind::Rejected, text).with_retryable(true)
}

/// Copies one error for several jobs.
fn copies_of<R>(error: Error, jobs: usize) -> Vec<Result<R, Error>> {
    let (kind, retryable, error) = (error.kind(), error.is_retryable(), std::sync::Arc::new(error));
    let copy = || {
        Error::new(kind, error.to_string())
            .with_retryable(retryable)
            .with_source(std::sync::Arc::clone(&error))
    };
    std::iter::repeat_with(|| Err(copy())).take(jobs).collect()
}
