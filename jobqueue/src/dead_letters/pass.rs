//! One pass through a dead-letter queue: leases page after page, handles each letter once, and releases the others.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::duplicates::{Key, LetterRole, Seen};
use super::held::{Held, PassAction};
use super::letter::{DeadLetter, DeadLetterEntry};
use super::options::{DeadLetterOptions, RedriveReport, SkippedLetter};
use super::revive::Put;
use super::untyped::{DeadLetterQueue, StorageRecord, unreadable};
use crate::delivery::claim_letter;
use crate::error::{Error, ErrorKind};
use crate::job::outcome::chain;
use crate::storage::{
    ExpiredReceipt, GetMessages, LeasedMessage, MAX_MESSAGES, MessageId, MessageRef, Received,
    StoreErrorKind, UpdateMessage,
};

/// The lease of dead letters during a pass: they are invisible to other passes.
const HOLD: Duration = Duration::from_secs(600);
/// The number of failures of the storage in a row after which the pass ends.
const MAX_FAILURES: u32 = 3;
/// The most letters that are handled, or made visible again, at the same time.
const MAX_AT_ONCE: usize = 16;
/// The most bytes of the payloads in blobs that are copied at the same time, if it is more than one.
const MAX_BYTES_AT_ONCE: u64 = 64 * 1024 * 1024;
/// The number of pages in a row with only newer letters after which the pass ends: new letters arrive faster than it
/// works.
const MAX_NEW_PAGES: u64 = 3;

/// The seconds before a look is repeated that found no more letters while a part of the queue did not answer.
const UNANSWERED: [u64; 5] = [1, 2, 4, 4, 4];

/// The cause of the end of a pass that could not look everywhere.
const UNCERTAIN_END: &str = "a part of the queue did not answer, so there may be more dead letters; try again when the storage is well";

/// Called for each letter that was handled.
type Listener<'l> = dyn FnMut(&DeadLetter) + Send + 'l;

/// The listeners of a pass.
#[expect(missing_debug_implementations, reason = "functions")]
pub struct Listeners<'l, 'f> {
    /// Called for each letter that was handled.
    pub of_letters: &'l mut Listener<'f>,
    /// Called for each letter that was deleted as a copy, or would be.
    pub of_copies: &'l mut Listener<'f>,
}

struct Pass<'p> {
    seen: &'p mut Seen,
    options: &'p DeadLetterOptions,
    action: PassAction,
    /// The time at which the pass began, by the storage's clock. It leaves later dead letters alone.
    began: Option<SystemTime>,
    /// The time at which the current page was leased, by the storage's clock.
    now: Option<SystemTime>,
    looked_at: HashSet<MessageId>,
    /// The earliest time for the next letter at the requested rate.
    next: Instant,
    /// The number of letters that are handled at the same time: twice as many after each success, one after a failure.
    at_once: usize,
    failures: u32,
    report: RedriveReport,
    /// The letters to make visible again.
    held: Vec<MessageRef>,
}

impl Pass<'_> {
    /// Returns the number of letters that may still be changed.
    fn room(&self) -> u64 {
        // A job that is put back counts, whether its letter could be deleted or not.
        let changed =
            self.report.moved.len() + self.report.skipped.iter().filter(|letter| letter.maybe_moved).count();
        self.options.limit.map_or(u64::MAX, |limit| limit.saturating_sub(changed as u64))
    }

    fn is_over(&self) -> bool {
        self.room() == 0
            || self.report.stopped.is_some()
            || self.options.stop.as_ref().is_some_and(CancellationToken::is_cancelled)
    }

    fn leave(&mut self, message: MessageRef) {
        self.report.left += 1;
        self.held.push(message);
    }

    /// Counts a failure, and returns its text. Several failures of the storage in a row end the pass; failures of
    /// single letters do not.
    fn fail(&mut self, letter: &DeadLetter, error: &Error) -> String {
        let why = chain(error);
        crate::log::warn!(job = %letter.id.escape_debug(), error = %why, "a dead letter was not handled completely");
        let is_of_storage =
            matches!(error.kind(), ErrorKind::Storage | ErrorKind::Rejected | ErrorKind::Unknown);
        self.failures = if is_of_storage { self.failures + 1 } else { 0 };
        if self.failures >= MAX_FAILURES {
            self.report.stopped = Some(why.clone());
        }
        why
    }

    /// Takes the next letters that can be handled at the same time: of different jobs and groups, and with payloads that fit into memory.
    fn next_letters(&mut self, picked: &mut VecDeque<Held>) -> Vec<Task> {
        let room = usize::try_from(self.room()).unwrap_or(usize::MAX);
        let (mut tasks, mut jobs, mut bytes) = (Vec::new(), HashSet::new(), 0);
        while tasks.len() < self.at_once.min(room)
            && let Some(next) = picked.front()
        {
            bytes += next.references().iter().map(|reference| reference.size).sum::<u64>();
            let is_alone =
                jobs.insert(Err(Key::of(next))) && next.order().is_none_or(|key| jobs.insert(Ok(key)));
            // A stop is noticed between two turns, so none of them takes long.
            let is_soon = self.next <= Instant::now() + Duration::from_secs(1);
            let may_join = is_alone && is_soon && bytes <= MAX_BYTES_AT_ONCE;
            if !tasks.is_empty() && !may_join {
                break;
            }
            let Some(held) = picked.pop_front() else { break };
            if Instant::now() >= held.until {
                // Others may have the letter by now; a later page brings it again.
                self.looked_at.remove(&held.message.id);
                continue;
            }
            let role = self.seen.role(&held, self.began);
            let begin = self.next;
            match (role, self.options.per_second) {
                (LetterRole::Leave, _) => {
                    self.leave(held.message);
                    continue;
                }
                (LetterRole::First, Some(rate)) if !self.action.only_tells() => {
                    self.next = self.next.max(Instant::now()) + Duration::from_secs(1) / rate;
                }
                _ => {}
            }
            tasks.push(Task { held, is_copy: role == LetterRole::Duplicate, begin });
        }
        tasks
    }

    fn record(
        &mut self,
        held: Held,
        handled: Result<Handled, (Put, Error)>,
        listeners: &mut Listeners<'_, '_>,
    ) {
        match handled {
            Ok(Handled { is_copy, payload_left }) => {
                match payload_left {
                    Some(error) => {
                        self.report.payloads_left += 1;
                        self.fail(&held.letter, &error);
                    }
                    None if !is_copy => {
                        self.failures = 0;
                        self.at_once = (self.at_once * 2).min(MAX_AT_ONCE);
                    }
                    None => {}
                }
                if is_copy {
                    self.report.copies += 1;
                    (listeners.of_copies)(&held.letter);
                } else {
                    self.seen.done(&held, self.action);
                    (listeners.of_letters)(&held.letter);
                    self.report.moved.push(held.letter.id);
                }
                if self.action.only_tells() {
                    self.held.push(held.message);
                }
            }
            Err((put, error)) => {
                if put == Put::Yes {
                    self.seen.done(&held, self.action);
                }
                let why = self.fail(&held.letter, &error);
                let DeadLetter { id, source, .. } = held.letter;
                self.report.skipped.push(SkippedLetter { id, source, why, maybe_moved: put != Put::No });
                self.held.push(held.message);
            }
        }
    }

    /// Returns how many of `there` letters the pass did not meet.
    fn unseen(&self, there: u64) -> u64 {
        let gone = match self.action {
            PassAction::Tell | PassAction::TellPutBack => 0,
            PassAction::PutBack | PassAction::Delete => self.report.moved.len() as u64 + self.report.copies,
        };
        there.saturating_sub((self.looked_at.len() as u64).saturating_sub(gone))
    }
}

/// The result of a letter that was reported, put back or deleted.
struct Handled {
    /// True for a copy of a letter that was handled.
    is_copy: bool,
    /// The error of a blob that stays although its letter is deleted.
    payload_left: Option<Error>,
}

/// A letter that is handled now.
struct Task {
    held: Held,
    /// True for a copy of a letter that was handled.
    is_copy: bool,
    /// The time before which the letter is not changed.
    begin: Instant,
}

impl DeadLetterQueue {
    /// Handles all dead letters that exist when it begins.
    pub async fn pass(
        &self,
        options: &DeadLetterOptions,
        action: PassAction,
        tell: &mut Listener<'_>,
    ) -> Result<RedriveReport, Error> {
        let listeners = Listeners { of_letters: tell, of_copies: &mut |_| {} };
        self.pass_telling_copies(&mut self.none_seen(), options, action, listeners).await
    }

    /// Returns what a first pass has seen before it begins.
    pub fn none_seen(&self) -> Seen {
        Seen::new(self.core.store().powers().dead_letters.is_none())
    }

    /// Does the same, and calls also for each letter that it deletes as a copy, or would delete: also of a letter that a former pass has
    /// handled (`seen`).
    pub async fn pass_telling_copies(
        &self,
        seen: &mut Seen,
        options: &DeadLetterOptions,
        action: PassAction,
        mut listeners: Listeners<'_, '_>,
    ) -> Result<RedriveReport, Error> {
        let mut pass = Pass {
            seen,
            options,
            action,
            began: options.before,
            now: None,
            looked_at: HashSet::new(),
            next: Instant::now(),
            at_once: 1,
            failures: 0,
            report: RedriveReport::default(),
            held: Vec::new(),
        };
        let done = self.pages(&mut pass, &mut listeners).await;
        pass.report.began = pass.began;
        pass.report.unseen = self.count().await.ok().map(|there| pass.unseen(there));
        self.release(pass.held).await;
        match done {
            Err(error) if pass.looked_at.is_empty() || action.only_tells() => return Err(error),
            Err(error) => pass.report.stopped = Some(chain(&error)),
            Ok(()) => {}
        }
        Ok(pass.report)
    }

    async fn pages(&self, pass: &mut Pass<'_>, listeners: &mut Listeners<'_, '_>) -> Result<(), Error> {
        let (mut pages_of_new, mut known_in_a_row) = (0, 0);
        // Behind a time that has passed there may be many before the first that is meant.
        let max_new_pages = match pass.options.before {
            Some(_) => {
                MAX_NEW_PAGES + self.known_count().await?.unwrap_or_default() / u64::from(MAX_MESSAGES)
            }
            None => MAX_NEW_PAGES,
        };
        let mut pauses = UNANSWERED.iter();
        while !pass.is_over() {
            let requested = Instant::now();
            let Received { messages: page, is_uncertain, is_partial, .. } = self.page().await?;
            if let Some(first) = page.first() {
                let held = first.granted.unwrap_or(HOLD);
                pass.now = Some(first.next_visible.checked_sub(held).unwrap_or(first.inserted));
                pass.began = pass.began.or(pass.now);
            }
            // If there are many, the first may be visible again before the last was read, and come before it: storages promise no
            // order. So the pass ends when nothing is left, or when it has met as many known letters in a row as there can be.
            let is_known = |leased: &LeasedMessage| pass.looked_at.contains(&leased.message.id);
            known_in_a_row = if page.iter().all(is_known) { known_in_a_row + page.len() } else { 0 };
            if page.is_empty() || known_in_a_row >= pass.looked_at.len().max(1) {
                pass.held.extend(page.into_iter().map(|leased| leased.message));
                if !is_uncertain && !is_partial {
                    return Ok(());
                }
                // An end that is not certain is no end.
                match pauses.next() {
                    Some(seconds) => tokio::time::sleep(Duration::from_secs(*seconds)).await,
                    None => pass.report.stopped = Some(UNCERTAIN_END.to_owned()),
                }
                continue;
            }
            pauses = UNANSWERED.iter();
            let is_new = |leased: &LeasedMessage| pass.began.is_some_and(|began| leased.inserted > began);
            pages_of_new = if page.iter().all(is_new) { pages_of_new + 1 } else { 0 };
            let picked: VecDeque<_> =
                page.into_iter().filter_map(|leased| self.pick(pass, leased, requested)).collect();
            self.handle_all(pass, picked, listeners).await;
            if pages_of_new >= max_new_pages {
                if is_partial {
                    pass.report.stopped = Some(UNCERTAIN_END.to_owned());
                }
                return Ok(());
            }
        }
        Ok(())
    }

    /// Handles letters, some at the same time, until the pass is over. Leaves the others.
    async fn handle_all(
        &self,
        pass: &mut Pass<'_>,
        mut picked: VecDeque<Held>,
        listeners: &mut Listeners<'_, '_>,
    ) {
        while !picked.is_empty() && !pass.is_over() {
            let tasks = pass.next_letters(&mut picked);
            let handled = join_all(tasks.iter().map(|task| self.handle(task, pass.action))).await;
            let has_failed = handled.iter().any(Result::is_err);
            for (task, handled) in tasks.into_iter().zip(handled) {
                pass.record(task.held, handled, listeners);
            }
            if has_failed {
                pass.at_once = 1;
            }
        }
        picked.into_iter().for_each(|held| pass.leave(held.message));
    }

    async fn page(&self) -> Result<Received, Error> {
        let get = GetMessages::new(MAX_MESSAGES, HOLD);
        match self.core.store().get(&self.name, get).await {
            Ok(received) => Ok(received),
            Err(e) if e.kind() == StoreErrorKind::QueueNotFound => Ok(Received::default()),
            Err(e) => Err(e.into()),
        }
    }

    /// Returns a letter that a request has leased at `requested`, if the pass handles it.
    fn pick(&self, pass: &mut Pass<'_>, leased: LeasedMessage, requested: Instant) -> Option<Held> {
        let LeasedMessage { message, text, inserted, dead, group, granted, .. } = leased;
        if !pass.looked_at.insert(message.id.clone()) {
            pass.held.push(message);
            return None;
        }
        let is_over = pass.is_over();
        let is_new = pass.began.is_some_and(|began| inserted > began);
        pass.report.newer += u64::from(is_new);
        if is_over || is_new {
            pass.leave(message);
            return None;
        }
        let found = StorageRecord { id: &message.id, inserted, cause: dead.as_ref() };
        let (entry, letter) = match &text {
            Ok(text) => {
                let entry = DeadLetterEntry::read(text);
                let letter = self.letter(&entry, text, found);
                (entry, letter)
            }
            Err(problem) => (DeadLetterEntry::External, self.letter_without_text(problem, &found)),
        };
        let is_picked = pass.options.picks(&letter, pass.began.unwrap_or(inserted));
        // The clock of the worker that wrote the time may be ahead.
        let is_named = is_picked && pass.options.names_messages;
        let is_new = !is_named && self.has_died_since(pass, &letter);
        pass.report.newer += u64::from(is_new);
        if is_new || !is_picked {
            pass.leave(message);
            return None;
        }
        let until = requested + granted.unwrap_or(HOLD);
        Some(Held { message, until, entry, letter, inserted, group })
    }

    /// Returns whether a job has died since the pass began, where a letter has the time of its message: by the time that a worker has written
    /// into it. A time to come is not believed: a producer may have written it, to keep its letter from every pass.
    fn has_died_since(&self, pass: &Pass<'_>, letter: &DeadLetter) -> bool {
        let (true, Some(began), Some(now), Some(died)) =
            (self.core.store().powers().dead_letters.is_some(), pass.began, pass.now, letter.time)
        else {
            return false;
        };
        died > began && died <= now
    }

    /// Acts on a letter. A copy of another one is deleted.
    ///
    /// # Errors
    /// The error, and whether the action had its effect all the same.
    async fn handle(&self, task: &Task, action: PassAction) -> Result<Handled, (Put, Error)> {
        let (held, not_put) = (&task.held, |error| (Put::No, error));
        if action.only_tells() {
            return Ok(Handled { is_copy: task.is_copy, payload_left: None });
        }
        // Another pass may have claimed another copy of the letter.
        let is_claimed = match &held.entry {
            DeadLetterEntry::Event(letter) if !task.is_copy => {
                !claim_letter(&self.core, letter).await.map_err(not_put)?
            }
            _ => false,
        };
        if task.is_copy || is_claimed {
            let payload_left = self.discard(held).await.map_err(|(_, error)| not_put(error))?;
            return Ok(Handled { is_copy: true, payload_left });
        }
        if action == PassAction::PutBack
            && let Some(problem) = held.letter.text_problem()
        {
            return Err((Put::No, unreadable(problem)));
        }
        sleep_until(task.begin).await;
        let payload_left = match action {
            PassAction::PutBack => self.put_back(held).await?,
            PassAction::Delete | PassAction::Tell | PassAction::TellPutBack => self.discard(held).await?,
        };
        Ok(Handled { is_copy: false, payload_left })
    }

    /// Makes the letters visible again that were only read.
    async fn release(&self, held: Vec<MessageRef>) {
        let release = async |message: MessageRef| {
            let update =
                UpdateMessage::new(Duration::ZERO).with_expired(ExpiredReceipt::Allow).ending_lease();
            if let Err(error) = self.core.store().update(&self.name, &message, update).await {
                crate::log::debug!(queue = %self.name, %error, "a dead letter stays invisible for up to 10 minutes");
            }
        };
        stream::iter(held).for_each_concurrent(MAX_AT_ONCE, release).await;
    }
}
