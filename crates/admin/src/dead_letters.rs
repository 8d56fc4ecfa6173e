//! Dead letters without their types: listed, searched, and selected for a redrive or a purge.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime};

use jobqueue::__internals::{DeadLetterQueue, PassAction, storage_time};
use jobqueue::dead_letters::{DeadLetter, DeadLetterOptions};
use jobqueue::storage::{MAX_MESSAGES, QueueName};
use jobqueue::{Error, ErrorKind};
use jobqueue_message::envelope::{Parsed, Payload, parse};
use tokio::time::Instant;

use super::errors::fingerprint;
use super::event::ActionTarget;
use super::found_letters::{DeadLetterPage, FoundLetters};
use super::jobs::MAX_SEARCHED_FOR_JOB;
use super::listed::LOG_SEARCH_TIME;
use super::membership::Memberships;
use super::text::{condition, exact_duration};
use super::{Action, Admin};

/// The number of letters that a request for a page of a filter reads.
const FILTERED_PAGE: u32 = 100;
/// The most letters that a page of a filter examines if one of them matches.
const MAX_EXAMINED: u64 = 1_000;

/// Selects the dead letters that meet all its conditions. A filter without a condition lists all dead
/// letters, but a change with it is refused unless it is [`all`](Self::all).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct DeadLetterFilter {
    all: bool,
    source: Option<String>,
    kind: Option<String>,
    key: Option<String>,
    reason: Option<String>,
    ids: Option<Vec<String>>,
    text: Option<String>,
    fingerprint: Option<String>,
    older_than: Option<Duration>,
    younger_than: Option<Duration>,
}

impl DeadLetterFilter {
    /// Returns a filter without a condition.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a filter that selects all dead letters, for changes too.
    pub fn all() -> Self {
        Self { all: true, ..Self::default() }
    }

    jobqueue_storage::setters! {
        /// Selects dead letters of this kind.
        kind(kind some String);

        /// Selects dead letters of jobs with exactly this key.
        key(key some String);

        /// Selects dead letters with this reason, such as `attempts_exhausted`.
        reason(reason some String);

        /// Selects dead letters of jobs of this sender: another sender's job with the same id is another job.
        source(source some String);
    }

    /// Selects the dead letters of the jobs with these ids.
    pub fn ids<I: Into<String>>(mut self, ids: impl IntoIterator<Item = I>) -> Self {
        self.ids = Some(ids.into_iter().map(Into::into).collect());
        self
    }

    jobqueue_storage::setters! {
        /// Selects dead letters with this text in their id, key, error or payload, in upper or lower case,
        /// and however JSON escapes it: `ü` matches `\u00fc` too. A payload in a blob is not read.
        text(text: impl Into<String>) = Some(text.into()).filter(|text| !text.is_empty());

        /// Selects the dead letters of one [`ErrorGroup`], by its fingerprint.
        fingerprint(fingerprint some String);

        /// Selects dead letters that are at least this old: from their death until a change or a search
        /// begins. Both times are by the storage's clock. Service Bus keeps the time of the send instead:
        /// there the worker writes the time of the death, by the service's clock as far as that has shown its
        /// time, and a letter that the service itself moved counts from its send. For the first 32 letters,
        /// [`Admin::dead_letters`] takes this process's clock if the storage does not return its time.
        older_than(age: Duration) => older_than;

        /// Selects dead letters younger than this. Ignores a worker's time of death that is in the future.
        younger_than(age: Duration) => younger_than;
    }

    /// Returns whether the filter has no condition: a change with it is refused.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn has_conditions(&self) -> bool {
        !self.is_empty() && *self != Self::all()
    }

    fn selects(&self, letter: &DeadLetter, now: SystemTime) -> bool {
        let is =
            |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        let age = |died: Option<SystemTime>| Some(now.duration_since(died?).unwrap_or_default());
        // A letter cannot have died after it arrived. On Service Bus the arrival is the send, so only the
        // worker's time is the time of the death.
        let (died, arrived) = (letter.time, letter.inserted());
        let least_age = || age(died.max(arrived));
        let known_age = || age(died.filter(|died| *died <= now).max(arrived));
        let is_of_key = self.key.is_none() || self.key == letter.key;
        is_of_key
            && is(&self.kind, &letter.kind)
            && is(&self.reason, letter.reason.as_str())
            && is(&self.source, &letter.source)
            && self.ids.as_ref().is_none_or(|ids| ids.contains(&letter.id))
            && self.older_than.is_none_or(|least| least_age().is_some_and(|age| age >= least))
            && self.younger_than.is_none_or(|most| known_age().is_some_and(|age| age < most))
            && self.text.as_deref().is_none_or(|text| has_text(letter, text))
            && self.fingerprint.as_ref().is_none_or(|wanted| *wanted == fingerprint(letter))
    }
}

/// The selection, as text for the audit.
impl fmt::Display for DeadLetterFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let age =
            |name: &str, value: Option<Duration>| value.map(|age| format!("{name} {}", exact_duration(age)));
        let conditions = [
            self.all.then(|| "all".to_owned()),
            condition("source", &self.source),
            condition("kind", &self.kind),
            condition("key", &self.key),
            condition("reason", &self.reason),
            self.ids.as_ref().map(|ids| format!("ids {ids:?}")),
            condition("text", &self.text),
            condition("fingerprint", &self.fingerprint),
            age("older than", self.older_than),
            age("younger than", self.younger_than),
        ];
        f.write_str(&conditions.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

fn has_text(letter: &DeadLetter, text: &str) -> bool {
    let text = text.to_lowercase();
    let payload = payload_text(letter.raw_text());
    let shown = [Some(letter.id.as_str()), letter.key.as_deref(), letter.error.as_deref(), Some(&*payload)];
    shown.into_iter().flatten().any(|shown| holds(shown, &text))
}

/// Returns whether a text contains `wanted`, which is in lower case, as it is or with its escapes resolved.
/// The text of a message that is not an event is JSON within JSON, and may quote JSON itself.
fn holds(text: &str, wanted: &str) -> bool {
    const MAX_DEPTH: usize = 4;
    let mut text = Cow::Borrowed(text);
    for _ in 0..MAX_DEPTH {
        if text.to_lowercase().contains(wanted) {
            return true;
        }
        if !text.contains('\\') {
            return false;
        }
        text = unescaped(&text).into();
    }
    text.to_lowercase().contains(wanted)
}

/// Resolves JSON escapes in a text, which need not be JSON.
fn unescaped(text: &str) -> String {
    let (mut units, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((plain, escape)) = rest.split_once('\\') {
        units.extend(plain.encode_utf16());
        let mut chars = escape.chars();
        let code = || escape.get(1..5).and_then(|digits| u16::from_str_radix(digits, 16).ok());
        let c = match (chars.next(), code()) {
            (Some('u'), Some(unit)) => {
                units.push(unit);
                rest = escape.get(5..).unwrap_or_default();
                continue;
            }
            (Some('n'), _) => '\n',
            (Some('t'), _) => '\t',
            (Some('r'), _) => '\r',
            (Some(other), _) => other,
            (None, _) => '\\',
        };
        units.extend(c.encode_utf16(&mut [0; 2]).iter());
        rest = chars.as_str();
    }
    units.extend(rest.encode_utf16());
    String::from_utf16_lossy(&units)
}

/// Returns the payload in a message itself, without the attributes that every message of its queue has.
fn payload_text(message: &str) -> Cow<'_, str> {
    match parse(message) {
        Ok(Parsed::Event(event)) => match event.payload {
            Payload::Json(json) => String::from_utf8_lossy(json.as_bytes()).into_owned().into(),
            Payload::Binary(bytes) => String::from_utf8_lossy(&bytes).into_owned().into(),
            Payload::None | Payload::Stored(_) => Cow::default(),
        },
        _ => message.into(),
    }
}

impl Admin {
    /// Returns the first dead letters of a queue that match a filter, among 32, without changing anything.
    /// [`complete`](DeadLetterPage::complete) says whether these are all. Costs two requests, one for each
    /// batch that the jobs name, and another if the filter has an age.
    ///
    /// With a condition, if the storage [shows every message](Self::shows_all_jobs), it examines the first
    /// 10,000 of each state, including those that other readers have leased, and returns those that match, up
    /// to 8 MiB of texts; [`matching`](DeadLetterPage::matching) counts all. This costs a request for each
    /// 1,000, and five more. On Service Bus it examines as many as it can read in two seconds, 500 a second
    /// at most.
    ///
    /// # Errors
    /// [`NotFound`](jobqueue::ErrorKind::NotFound) if there is no such queue;
    /// [`Invalid`](jobqueue::ErrorKind::Invalid) for a dead-letter queue;
    /// [`Storage`](jobqueue::ErrorKind::Storage) if its dead letters cannot be read.
    pub async fn dead_letters(
        &self,
        queue: &str,
        filter: &DeadLetterFilter,
    ) -> Result<DeadLetterPage, Error> {
        let mut page = self.dead_letters_without_batches(queue, filter).await?;
        Memberships::default().prove(&self.storage, &mut page.letters, None).await?;
        Ok(page)
    }

    /// Like [`dead_letters`](Self::dead_letters), without verifying to which batches the jobs belong.
    pub(super) async fn dead_letters_without_batches(
        &self,
        queue: &str,
        filter: &DeadLetterFilter,
    ) -> Result<DeadLetterPage, Error> {
        let letters = self.dead_letter_queue(queue).await?;
        let now = self.now_for(queue, filter).await?;
        let mut found = FoundLetters::new(queue, usize::MAX);
        let select = |letter: &DeadLetter| {
            let is_selected = filter.selects(letter, now);
            if is_selected {
                found.add(letter);
            }
            is_selected
        };
        if filter.has_conditions()
            && let Some(searched) = letters.search(MAX_SEARCHED_FOR_JOB, select).await?
        {
            return Ok(found.page(searched.looked_at, searched.complete));
        }
        let (count, peeked) = (letters.known_count().await?, letters.peek().await?);
        let looked_at = peeked.looked_at;
        let selected = peeked.letters.iter().filter(|letter| filter.selects(letter, now));
        selected.for_each(|letter| found.add(letter));
        Ok(found.page(looked_at, count.is_some_and(|count| looked_at >= count)))
    }

    /// Returns a page of the dead letters of a queue: like [`dead_letters`](Self::dead_letters), but also
    /// those behind the first 32, if the storage [shows every message](Self::shows_all_jobs).
    /// [`next`](DeadLetterPage::next) is where the following page starts. Other storages, and a filter with
    /// [ids](DeadLetterFilter::ids), have no further page.
    ///
    /// A page without conditions ends once it lists 32 letters, and one with conditions once 32 match or
    /// about 1,000 are examined, or 10,000 if none of these matches; on Service Bus also after two seconds.
    /// They are read 100 at a time. A copy of a letter that was read before is listed again.
    ///
    /// # Errors
    /// As [`dead_letters`](Self::dead_letters), and [`Invalid`](ErrorKind::Invalid) if no page ended where
    /// this one is to start.
    pub async fn dead_letters_from(
        &self,
        queue: &str,
        filter: &DeadLetterFilter,
        from: Option<&str>,
    ) -> Result<DeadLetterPage, Error> {
        if filter.ids.is_some() || !self.shows_all_jobs() {
            let text = "there is no further page: the storage shows only the first 32 visible dead letters, or the filter names ids";
            return match from {
                None => self.dead_letters(queue, filter).await,
                Some(_) => Err(Error::new(ErrorKind::Invalid, text)),
            };
        }
        let letters = self.dead_letter_queue(queue).await?;
        let now = self.now_for(queue, filter).await?;
        let size = if filter.has_conditions() { FILTERED_PAGE } else { MAX_MESSAGES };
        let count = if from.is_none() { letters.known_count().await? } else { None };
        let (begun, mut found) = (Instant::now(), FoundLetters::new(queue, usize::MAX));
        let (mut looked_at, mut is_partial, mut next) = (0, false, from.map(str::to_owned));
        loop {
            let page = letters.page(next.as_deref(), size).await?;
            looked_at += page.looked_at;
            is_partial |= page.is_partial;
            let selected = page.letters.iter().filter(|letter| filter.selects(letter, now));
            selected.for_each(|letter| found.add(letter));
            next = page.next;
            let max_examined = if found.matching > 0 { MAX_EXAMINED } else { MAX_SEARCHED_FOR_JOB as u64 };
            let is_over = looked_at >= max_examined || self.has_log() && begun.elapsed() >= LOG_SEARCH_TIME;
            if next.is_none() || found.matching >= u64::from(MAX_MESSAGES) || is_over {
                break;
            }
        }
        let complete = !is_partial && count.is_some_and(|count| looked_at >= count);
        let next = next.filter(|_| !complete);
        let mut page = DeadLetterPage { next, ..found.page(looked_at, complete) };
        Memberships::default().prove(&self.storage, &mut page.letters, None).await?;
        Ok(page)
    }

    /// Examines all dead letters of a queue, and returns the first `limit` that match the filter. Dead
    /// letters are invisible to other readers during the search, for at most 10 minutes. Costs one request
    /// for 32 dead letters, one for each letter to put it back, and one for each batch that the returned
    /// letters name.
    ///
    /// # Errors
    /// [`Forbidden`](jobqueue::ErrorKind::Forbidden) unless [`Action::Inspect`] is allowed; otherwise as
    /// [`dead_letters`](Self::dead_letters).
    ///
    /// # Cancel safety
    /// If the future is dropped, the dead letters that it has leased come back after at most 10 minutes.
    pub async fn search_dead_letters(
        &self,
        queue: &str,
        filter: &DeadLetterFilter,
        limit: usize,
    ) -> Result<DeadLetterPage, Error> {
        let work = async {
            let letters = self.dead_letter_queue(queue).await?;
            let mut found = FoundLetters::new(queue, limit);
            let options = selecting(filter).stop(self.stop.clone());
            let report = letters.pass(&options, PassAction::Report, &mut |letter| found.add(letter)).await?;
            Memberships::default().prove(&self.storage, &mut found.letters, None).await?;
            let looked_at = found.matching + report.copies + report.left;
            let page = found.page(looked_at, report.unseen == Some(0) && report.stopped.is_none());
            Ok(DeadLetterPage { stopped: report.stopped, ..page })
        };
        let summary = |page: &DeadLetterPage| format!("looked at {} dead letters", page.looked_at);
        let subject = format!("dead letters of {queue}");
        let target = ActionTarget { subject, selection: filter.to_string(), jobs: Vec::new() };
        self.act(Action::Inspect, target, work, summary).await
    }

    /// Returns the time at which ages are measured: by the storage's clock, if the filter has an age.
    async fn now_for(&self, queue: &str, filter: &DeadLetterFilter) -> Result<SystemTime, Error> {
        if filter.older_than.is_none() && filter.younger_than.is_none() {
            return Ok(self.clock().now());
        }
        self.storage_time(&QueueName::new(queue)?).await
    }

    /// Returns the time of the storage, or of this process if the storage does not return its own. Costs a
    /// request for a queue, or else a listing.
    pub(super) async fn storage_time(&self, queue: &QueueName) -> Result<SystemTime, Error> {
        let properties = self.storage.queues().queue_properties(queue).await;
        let answered = properties.ok().and_then(|properties| properties.now);
        let now = storage_time(&self.storage, answered).await?;
        Ok(now.unwrap_or_else(|| self.clock().now()))
    }

    pub(super) async fn dead_letter_queue(&self, queue: &str) -> Result<DeadLetterQueue, Error> {
        Self::check_home(queue)?;
        self.open(queue).await?.dead_letters()
    }
}

/// Returns the options of a pass over the dead letters that a filter selects. Ages are measured by the
/// storage's clock: an operator's clock must not make dead letters old enough to be deleted.
pub(super) fn selecting(filter: &DeadLetterFilter) -> DeadLetterOptions {
    let filter = filter.clone();
    DeadLetterOptions::new().filter_at(move |letter, began| filter.selects(letter, began))
}
