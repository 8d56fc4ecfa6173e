//! One pass through a dead-letter queue: leases page after page, handles each letter once, and releases the
//! others.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use tokio::time::{Instant, sleep_until, timeout};

use super::duplicates::SeenLetters;
use super::held::{HeldLetter, PassAction};
use super::letter::{DeadLetter, event_of};
use super::options::{DeadLetterOptions, RedriveReport};
use super::pass_state::{Handled, LetterListener, MAX_CONCURRENT_LETTERS, Pass, PassListeners, Task};
use super::untyped::{DeadLetterQueue, StorageRecord, unreadable};
use crate::delivery::{LetterClaim, claim_letter, was_redriven};
use crate::error::Error;
use crate::job::outcome::chain;
use crate::queue_core::{RESCAN_SECONDS, UNCERTAIN_END};
use crate::storage::{
    Certainty, ExpiredReceipt, GetMessages, LeasedMessage, MAX_MESSAGES, MessageRef, Received,
    StoreErrorKind, Tries, UpdateMessage,
};
use crate::sync::lock;

/// The lease of dead letters during a pass, in which they are invisible to other passes.
const LETTER_LEASE: Duration = Duration::from_secs(600);
/// The time after which a page is not requested again. Some storages take half a minute to notice that a
/// request gets no answer.
const PAGE_REQUEST_TIMEOUT: Duration = Duration::from_secs(100);
/// The longest wait for a storage that throttles. Then the page is requested nevertheless, because the
/// storage may throttle the lease renewals of other jobs for hours.
const MAX_THROTTLE_WAIT: Duration = Duration::from_secs(60);
/// The time after the last success after which a pass gives up making letters visible again.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(30);
/// The reason if the first letters became visible again before the last letter was seen.
pub(super) const TOO_MANY_LETTERS: &str = "more dead letters than can be read while the first are held, so some may not have been met; redrive or purge some first";
/// The reason if the pass ended because its [stop](DeadLetterOptions::stop) fired.
const STOPPED: &str = "it was stopped by a request";
/// The reason if a request for letters failed and may have leased some.
const ANSWER_LOST: &str =
    "a request for dead letters failed and may have hidden some for up to 10 minutes; try again then";
/// The number of pages in a row with only newer letters after which the pass ends: new letters arrive faster
/// than the pass reads them.
const MAX_NEW_PAGES: u64 = 3;

impl DeadLetterQueue {
    /// Handles all dead letters that exist when the pass begins.
    pub async fn pass(
        &self,
        options: &DeadLetterOptions,
        action: PassAction,
        on_letter: &mut LetterListener<'_>,
    ) -> Result<RedriveReport, Error> {
        let listeners =
            PassListeners { of_letters: on_letter, of_copies: &mut |_| {}, of_stayed: &mut |_| {} };
        self.pass_reporting_copies(&mut self.none_seen(), options, action, listeners).await
    }

    /// Returns the state for a first pass, which has seen no letters.
    pub fn none_seen(&self) -> SeenLetters {
        SeenLetters::new(self.core.store().powers().dead_letters.is_none())
    }

    /// Handles all dead letters that exist when the pass begins, like [`pass`](Self::pass). Also reports each
    /// letter that it deletes as a copy, or would delete, including copies of letters that an earlier pass
    /// has handled (`seen`).
    pub async fn pass_reporting_copies(
        &self,
        seen: &mut SeenLetters,
        options: &DeadLetterOptions,
        action: PassAction,
        mut listeners: PassListeners<'_, '_>,
    ) -> Result<RedriveReport, Error> {
        let mut pass = Pass {
            seen,
            options,
            action,
            began: options.before,
            now: None,
            known_ids: HashSet::new(),
            next_at: Instant::now(),
            concurrency: 1,
            failures: 0,
            report: RedriveReport::default(),
            to_release: Vec::new(),
            answer_lost: false,
        };
        let done = self.pages(&mut pass, &mut listeners).await;
        pass.report.began = pass.began;
        pass.report.unseen = self.count().await.ok().map(|there| pass.unseen(there));
        self.release(pass.to_release).await;
        match done {
            Err(error) if pass.known_ids.is_empty() || action.only_reports() => return Err(error),
            Err(error) => pass.report.stopped = Some(chain(&error)),
            Ok(Some(doubt)) if pass.report.unseen != Some(0) => {
                pass.report.stopped.get_or_insert_with(|| doubt.to_owned());
            }
            Ok(_) => {}
        }
        Ok(pass.report)
    }

    /// Handles page after page. Returns the reason to report if some letters were not seen.
    async fn pages(
        &self,
        pass: &mut Pass<'_>,
        listeners: &mut PassListeners<'_, '_>,
    ) -> Result<Option<&'static str>, Error> {
        let (mut pages_of_new, mut known_in_a_row) = (0, 0);
        let max_new_pages = self.max_new_pages(pass.options).await?;
        let mut pauses = RESCAN_SECONDS.iter();
        while !pass.is_over() {
            let Some((requested, received)) = self.next_page(pass).await? else { break };
            let Received { messages: page, is_uncertain, is_partial, .. } = received;
            if let Some(first) = page.first() {
                // A granted time counts from the request, and may be too long by the way of the answer: letters
                // that came shortly before the request would be taken for newer.
                let rest_of = |granted: Duration| granted.saturating_sub(requested.elapsed());
                let rest = first.granted.map_or(LETTER_LEASE, rest_of);
                pass.now = Some(first.next_visible.checked_sub(rest).unwrap_or(first.inserted));
                pass.began = pass.began.or(pass.now);
                pass.seen.received = pass.seen.received.or(pass.now);
            }
            // With many letters, the first may become visible again before the last was read, and be returned
            // before it: storages promise no order. So the pass ends at an empty page, or after as many known
            // letters in a row as it has seen in all.
            let is_known = |leased: &LeasedMessage| pass.known_ids.contains(&leased.message.id);
            known_in_a_row = if page.iter().all(is_known) { known_in_a_row + page.len() } else { 0 };
            if page.is_empty() || known_in_a_row >= pass.known_ids.len().max(1) {
                let too_many = (!page.is_empty()).then_some(TOO_MANY_LETTERS);
                pass.to_release.extend(page.into_iter().map(|leased| leased.message));
                if !is_uncertain && !is_partial {
                    return Ok(pass.answer_lost.then_some(ANSWER_LOST).or(too_many));
                }
                // The queue may not be empty: retry.
                match pauses.next() {
                    Some(seconds) => tokio::time::sleep(Duration::from_secs(*seconds)).await,
                    None => pass.report.stopped = Some(UNCERTAIN_END.to_owned()),
                }
                continue;
            }
            pauses = RESCAN_SECONDS.iter();
            let is_new = |leased: &LeasedMessage| pass.began.is_some_and(|began| leased.inserted > began);
            pages_of_new = if page.iter().all(is_new) { pages_of_new + 1 } else { 0 };
            let picked: VecDeque<_> =
                page.into_iter().filter_map(|leased| self.pick(pass, leased, requested)).collect();
            self.handle_all(pass, picked, listeners).await;
            if pages_of_new >= max_new_pages {
                if is_partial {
                    pass.report.stopped = Some(UNCERTAIN_END.to_owned());
                }
                return Ok(pass.answer_lost.then_some(ANSWER_LOST));
            }
        }
        if pass.remaining() > 0 {
            let why = if pass.answer_lost { ANSWER_LOST } else { STOPPED };
            pass.report.stopped.get_or_insert_with(|| why.to_owned());
        }
        Ok(None)
    }

    /// Returns the number of pages in a row with only newer letters after which a pass ends.
    async fn max_new_pages(&self, options: &DeadLetterOptions) -> Result<u64, Error> {
        Ok(match options.before {
            // Many letters may be newer than a time in the past, and returned before the first older letter.
            Some(_) => {
                MAX_NEW_PAGES + self.known_count().await?.unwrap_or_default() / u64::from(MAX_MESSAGES)
            }
            None => MAX_NEW_PAGES,
        })
    }

    /// Handles letters, several concurrently, until the pass is over. Leaves the others.
    async fn handle_all(
        &self,
        pass: &mut Pass<'_>,
        mut picked: VecDeque<HeldLetter>,
        listeners: &mut PassListeners<'_, '_>,
    ) {
        while !picked.is_empty() && !pass.is_over() {
            let tasks = pass.next_letters(&mut picked, listeners);
            let handled = join_all(tasks.iter().map(|task| self.handle(task, pass.action))).await;
            let has_failed = handled.iter().any(Result::is_err);
            for (task, handled) in tasks.into_iter().zip(handled) {
                pass.record(task.held, handled, listeners);
            }
            if has_failed {
                pass.concurrency = 1;
            }
        }
        picked.into_iter().for_each(|held| pass.leave(held.message));
    }

    /// Leases a page. Also returns the time of the request that leased it; `None` if the pass was stopped
    /// before. Records whether a failed request may have leased letters.
    async fn next_page(&self, pass: &mut Pass<'_>) -> Result<Option<(Instant, Received)>, Error> {
        let ready = timeout(MAX_THROTTLE_WAIT, self.core.storage.throttle().until_ready());
        let stop = pass.options.stop.clone().unwrap_or_default();
        if stop.run_until_cancelled(ready).await.is_none() {
            return Ok(None);
        }
        let mut tries = Tries::until(self.core.runtime(), Instant::now() + PAGE_REQUEST_TIMEOUT, 2, 2);
        loop {
            let requested = Instant::now();
            match self.core.store().get(&self.name, GetMessages::new(MAX_MESSAGES, LETTER_LEASE)).await {
                Ok(received) => return Ok(Some((requested, received))),
                Err(e) if e.kind() == StoreErrorKind::QueueNotFound => {
                    return Ok(Some((requested, Received::default())));
                }
                Err(e) => {
                    let again = stop.run_until_cancelled(tries.failed(e)).await;
                    pass.answer_lost |= tries.is_in_doubt();
                    match again {
                        Some(again) => again?,
                        None => return Ok(None),
                    }
                }
            }
        }
    }

    /// Returns a letter that a request has leased at `requested`, if the pass handles it.
    fn pick(&self, pass: &mut Pass<'_>, leased: LeasedMessage, requested: Instant) -> Option<HeldLetter> {
        let LeasedMessage { message, text, inserted, dead, original_id, group, granted, .. } = leased;
        if !pass.known_ids.insert(message.id.clone()) {
            pass.to_release.push(message);
            return None;
        }
        let is_over = pass.is_over();
        let is_new = pass.began.is_some_and(|began| inserted > began);
        pass.report.newer += u64::from(is_new);
        if is_over || is_new {
            pass.leave(message);
            return None;
        }
        let id = original_id.as_ref().unwrap_or(&message.id);
        let record = StorageRecord { id, inserted, cause: dead.as_ref() };
        let (event, letter) = match &text {
            Ok(text) => {
                let event = event_of(text);
                let letter = self.letter(event.as_deref(), text, record);
                (event, letter)
            }
            Err(problem) => (None, self.letter_without_text(problem, &record)),
        };
        let is_picked = pass.options.picks(&letter, pass.began.unwrap_or(inserted));
        // A letter that is selected by the id of its message is not compared by time: the clock of the worker
        // that wrote the time may be ahead.
        let is_named = is_picked && pass.options.names_messages;
        let is_new = !is_named && self.has_died_since(pass, &letter);
        pass.report.newer += u64::from(is_new);
        if is_new || !is_picked {
            pass.leave(message);
            return None;
        }
        let until = requested + granted.unwrap_or(LETTER_LEASE);
        let (leased_at, received) = (pass.now.unwrap_or(inserted), Instant::now());
        Some(HeldLetter { message, until, leased_at, received, event, letter, inserted, original_id, group })
    }

    /// Returns whether a job was dead-lettered after the pass began, on storages where a letter has the
    /// insertion time of its message: compares the time that the worker wrote into the letter. Ignores a time
    /// in the future, which a producer may have written to hide its letter from every pass.
    fn has_died_since(&self, pass: &Pass<'_>, letter: &DeadLetter) -> bool {
        let (true, Some(began), Some(now), Some(died)) =
            (self.core.store().powers().dead_letters.is_some(), pass.began, pass.now, letter.time)
        else {
            return false;
        };
        died > began && died <= now
    }

    /// Applies the action to a letter. Deletes the letter instead if it is a copy of another letter, or if an
    /// earlier redrive has put its job back.
    ///
    /// # Errors
    /// The error, and the certainty that the action was applied.
    async fn handle(&self, task: &Task, action: PassAction) -> Result<Handled, (Certainty, Error)> {
        let held = &task.held;
        let not_applied = |error| (Certainty::NotApplied, error);
        if action.only_reports() {
            return Ok(Handled { is_copy: task.is_copy, payload_left: None });
        }
        // Another pass may have claimed another copy of the letter.
        let claim = match &held.event {
            _ if task.is_copy => LetterClaim::Copy,
            Some(event) => claim_letter(&self.core, event).await.map_err(not_applied)?,
            None => LetterClaim::Repeated,
        };
        let discarded = match claim {
            // The letter that this pass has handled needs no blobs.
            LetterClaim::Copy if task.is_copy => Some(self.discard(held).await),
            LetterClaim::Copy => Some(self.discard_copy(held).await),
            // The redrive that put the job back has copied its blobs, whatever their size.
            LetterClaim::Repeated
                if action == PassAction::PutBack
                    && was_redriven(&self.core, &held.stored()).await.map_err(not_applied)? =>
            {
                Some(self.discard(held).await)
            }
            _ => None,
        };
        if let Some(discarded) = discarded {
            let payload_left = discarded.map_err(|(_, error)| not_applied(error))?;
            return Ok(Handled { is_copy: true, payload_left });
        }
        if action == PassAction::PutBack
            && let Some(problem) = held.letter.text_problem()
        {
            return Err(not_applied(unreadable(problem)));
        }
        sleep_until(task.begin).await;
        let payload_left = match action {
            PassAction::PutBack => self.put_back(held).await?,
            PassAction::Delete | PassAction::Report | PassAction::ReportPutBack => self.discard(held).await?,
        };
        Ok(Handled { is_copy: false, payload_left })
    }

    /// Makes the letters visible again that were not deleted. In an outage, in which each request may remain
    /// without an answer, all letters share the time of one change, because there may be thousands. Each
    /// success in between gives the others that time again: thousands take longer than one may.
    async fn release(&self, held: Vec<MessageRef>) {
        let all_visible = Instant::now() + LETTER_LEASE;
        let give_up = Mutex::new(Instant::now() + RELEASE_TIMEOUT);
        let release = async |message: MessageRef| {
            let (began, until) = (Instant::now(), *lock(&give_up));
            if began >= until {
                return;
            }
            let update =
                UpdateMessage::new(Duration::ZERO).with_expired(ExpiredReceipt::Allow).ending_lease();
            let tries = Tries::until(self.core.runtime(), until, 2, 2);
            let updated = tries.run(|| self.core.store().update(&self.name, &message, update.clone())).await;
            // An error of this letter alone, such as a lost lease, says nothing about the storage. A success
            // that took long does: the next may take as long.
            let is_outage = matches!(&updated, Err(error) if error.is_retryable() || error.is_ambiguous());
            if !is_outage && began.elapsed() < RELEASE_TIMEOUT / 2 {
                *lock(&give_up) = (Instant::now() + RELEASE_TIMEOUT).min(all_visible);
            }
            if let Err(error) = updated {
                crate::log::debug!(queue = %self.name, %error, "a dead letter stays invisible for up to 10 minutes");
            }
        };
        stream::iter(held).for_each_concurrent(MAX_CONCURRENT_LETTERS, release).await;
    }
}
