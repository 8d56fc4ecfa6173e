//! Sends a message in order: announce, put, confirm.

use std::collections::BTreeMap;
use std::time::Duration;

use super::entry::{Announcement, EntryRef, PAGE};
use super::log::{Announced, Confirmed, GroupLog, Millis};
use super::message::restamp;
use super::store::GroupLogs;
use crate::envelope::Envelope;
use crate::envelope::headers::order::IN_ORDER;
use crate::error::{Error, ErrorKind};
use crate::runtime::Runtime;

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
        let text = "a send in order needs a key: mark a field with #[message(key)] or set one in the options";
        let key = envelope.key.as_deref();
        let key = key.ok_or_else(|| Error::new(ErrorKind::Invalid, text))?;
        Ok(Self { entry: EntryRef::new(key, &envelope.identity()), nonce, delay })
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
/// page of each. Returns one answer for each job.
///
/// # Errors
/// For each job: the caller must not store its message.
pub(crate) async fn announce(logs: &GroupLogs, all: &mut [Announcement]) -> Vec<Result<Announced, Error>> {
    let refused = |error: Error| {
        let retryable = error.is_retryable();
        Error::new(ErrorKind::Rejected, "the message is not stored: it could not be given its position")
            .with_retryable(retryable)
            .with_source(error)
    };
    let now = match logs.clock.certain_now().await {
        Ok(now) => now,
        Err(error) => return copies_of(refused(error), all.len()),
    };
    let mut by_key: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (place, Announcement { entry, .. }) in all.iter().enumerate() {
        by_key.entry((entry.log, entry.key)).or_default().push(place);
    }
    let listed = &*all;
    let announced = by_key.into_values().map(|places| async move {
        let mut answers = Vec::with_capacity(places.len());
        for part in places.chunks(PAGE) {
            let part: Vec<_> = part.iter().map(|place| listed[*place]).collect();
            match logs.announce(&part, now).await {
                Ok((page, announced)) => {
                    answers.extend(announced.into_iter().map(|announced| Ok((page, announced))));
                }
                Err(error) => {
                    // Later jobs of the list must not overtake these.
                    answers.extend(copies_of(error, places.len() - answers.len()));
                    break;
                }
            }
        }
        places.into_iter().zip(answers).collect::<Vec<_>>()
    });
    let announced = futures_util::future::join_all(announced).await;
    let mut announced: Vec<_> = announced.into_iter().flatten().collect();
    announced.sort_by_key(|(place, _)| *place);
    let answers = all.iter_mut().zip(announced).map(|(announcement, (_, answer))| match answer {
        Ok((_, Announced::Full)) => Err(full()),
        Ok((page, announced)) => {
            announcement.entry.page = page;
            Ok(announced)
        }
        Err(error) => Err(refused(error)),
    });
    answers.collect()
}

/// Confirms that the messages of announced jobs are stored.
///
/// # Errors
/// For each job: the send is not acknowledged, although its message is stored.
pub(crate) async fn confirm(logs: &GroupLogs, all: &[Confirmation]) -> Vec<Result<(), Error>> {
    let now = logs.clock.now().await;
    let announcements: Vec<_> = all.iter().map(|confirmation| confirmation.announcement).collect();
    let single: BTreeMap<u64, bool> =
        all.iter().map(|confirmation| (confirmation.announcement.nonce, confirmation.is_single)).collect();
    let confirm = move |log: &mut GroupLog, Announcement { entry, nonce, delay }: &Announcement| {
        let visible = Millis(now.after(*delay));
        let is_single = single.get(nonce) == Some(&true);
        let confirmed = log.confirm(entry, *nonce, is_single, visible);
        (confirmed, log.passed_page(entry.key))
    };
    let unknown = |text: &str| Error::new(ErrorKind::Unknown, text).with_retryable(true);
    let late = |error: Error| {
        let text = "the message is stored and may run out of order; send it again under the same id";
        unknown(text).with_source(error)
    };
    let confirmed = change_logs(logs, &announcements, confirm).await;
    let mut answers = Vec::with_capacity(all.len());
    for (Announcement { entry, .. }, confirmed) in announcements.iter().zip(confirmed) {
        answers.push(match confirmed {
            Ok((Confirmed::Acknowledged, passed)) => logs.seal(entry, passed).await.map_err(late),
            Ok((Confirmed::Gone, _)) => Err(unknown(
                "the log of the key no longer knows the message: the queue was cleared, or the job has ended",
            )),
            Err(error) => Err(late(error)),
        });
    }
    answers
}

/// Removes announcements whose messages are certainly not stored. If that fails, the jobs behind them skip
/// them.
pub(crate) async fn retract(logs: &GroupLogs, all: &[Announcement]) {
    let retract = |log: &mut GroupLog, announcement: &Announcement| {
        log.retract(&announcement.entry, announcement.nonce);
    };
    for answer in change_logs(logs, all, retract).await {
        if let Err(error) = answer {
            crate::log::debug!(queue = %logs.queue, %error, "an announced position was not removed; the jobs behind it will skip it");
        }
    }
}

/// Makes one change for each announcement. The changes of a document share a write. Returns one answer for
/// each announcement.
async fn change_logs<R: Send + 'static>(
    logs: &GroupLogs,
    all: &[Announcement],
    change: impl Fn(&mut GroupLog, &Announcement) -> R + Clone + Send + 'static,
) -> Vec<Result<R, Error>> {
    let changes = all.iter().map(|announcement| {
        let (announcement, change) = (*announcement, change.clone());
        let entry = announcement.entry;
        async move { logs.change_in(entry.page, &entry, move |log| change(log, &announcement)).await }
    });
    futures_util::future::join_all(changes).await
}

fn full() -> Error {
    let text = "the message is not stored: too many messages wait in the log of its key";
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
