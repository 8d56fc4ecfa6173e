//! One pass through a dead-letter queue: leases page after page, handles each letter once, and releases the others.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, stream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::duplicates::{Seen, Turn};
use super::held::{Held, PassAction};
use super::letter::{DeadLetter, DeadLetterEntry};
use super::options::{RedriveOptions, RedriveReport, SkippedLetter};
use super::revive::Put;
use super::untyped::{DeadLetterQueue, Found, unreadable};
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
/// The number of letters that are made visible again at once.
const RELEASED_AT_ONCE: usize = 16;
/// The number of pages in a row with only newer letters after which the pass ends: new letters arrive faster than it
/// works.
const MAX_NEW_PAGES: u64 = 3;

/// The seconds before a look is repeated that found no more letters while a part of the queue did not answer.
const UNANSWERED: [u64; 5] = [1, 2, 4, 4, 4];

/// The cause of the end of a pass that could not look everywhere.
const UNCERTAIN_END: &str = "a part of the queue did not answer, so there may be more dead letters; try again when the storage is well";

/// Called for each letter that was handled.
type Listener<'l> = dyn FnMut(&DeadLetter) + Send + 'l;

struct Pass<'p> {
    options: &'p RedriveOptions,
    action: PassAction,
    /// The time at which the pass began, by the storage's clock. It leaves later dead letters alone.
    began: Option<SystemTime>,
    looked_at: HashSet<MessageId>,
    seen: Seen,
    /// The earliest time for the next letter at the requested rate.
    next: Instant,
    failures: u32,
    report: RedriveReport,
    /// The letters to make visible again.
    held: Vec<MessageRef>,
}

impl Pass<'_> {
    fn is_full(&self) -> bool {
        // A job that is put back counts, whether its letter could be deleted or not.
        let changed =
            self.report.moved.len() + self.report.skipped.iter().filter(|letter| letter.maybe_moved).count();
        self.options.limit.is_some_and(|limit| changed as u64 >= limit)
            || self.options.stop.as_ref().is_some_and(CancellationToken::is_cancelled)
    }

    fn leave(&mut self, message: MessageRef) {
        self.report.left += 1;
        self.held.push(message);
    }

    /// Records a letter with which the action failed. Several failures of the storage in a row end the pass; failures
    /// of single letters do not.
    fn skip(&mut self, held: Held, error: &Error, maybe_moved: bool) {
        let why = chain(error);
        tracing::warn!(job = %held.letter.id.escape_debug(), error = %why, "a dead letter was skipped");
        let is_of_storage =
            matches!(error.kind(), ErrorKind::Storage | ErrorKind::Rejected | ErrorKind::Unknown);
        self.failures = if is_of_storage { self.failures + 1 } else { 0 };
        if self.failures >= MAX_FAILURES {
            self.report.stopped = Some(why.clone());
        }
        self.report.skipped.push(SkippedLetter { id: held.letter.id, why, maybe_moved });
        self.held.push(held.message);
    }

    async fn keep_to_the_rate(&mut self) {
        if let Some(rate) = self.options.per_second {
            tokio::time::sleep_until(self.next).await;
            self.next = self.next.max(Instant::now()) + Duration::from_secs(1) / rate;
        }
    }
}

impl DeadLetterQueue {
    /// Handles all dead letters that exist when it begins.
    pub async fn pass(
        &self,
        options: &RedriveOptions,
        action: PassAction,
        tell: &mut Listener<'_>,
    ) -> Result<RedriveReport, Error> {
        let mut pass = Pass {
            options,
            action,
            began: options.before,
            looked_at: HashSet::new(),
            seen: Seen::default(),
            next: Instant::now(),
            failures: 0,
            report: RedriveReport::default(),
            held: Vec::new(),
        };
        let done = self.pages(&mut pass, tell).await;
        pass.report.began = pass.began;
        self.release(pass.held).await;
        match done {
            Err(error) if pass.looked_at.is_empty() || action == PassAction::Tell => return Err(error),
            Err(error) => pass.report.stopped = Some(chain(&error)),
            Ok(()) => {}
        }
        Ok(pass.report)
    }

    async fn pages(&self, pass: &mut Pass<'_>, tell: &mut Listener<'_>) -> Result<(), Error> {
        let (mut pages_of_new, mut known_in_a_row) = (0, 0);
        // Behind a time that has passed there may be many before the first that is meant.
        let max_new_pages = match pass.options.before {
            Some(_) => MAX_NEW_PAGES + self.count().await? / u64::from(MAX_MESSAGES),
            None => MAX_NEW_PAGES,
        };
        let mut pauses = UNANSWERED.iter();
        while !pass.is_full() && pass.report.stopped.is_none() {
            let requested = Instant::now();
            let Received { messages: page, is_uncertain, is_partial, .. } = self.page().await?;
            if let (None, Some(first)) = (pass.began, page.first()) {
                let held = first.granted.unwrap_or(HOLD);
                pass.began = Some(first.next_visible.checked_sub(held).unwrap_or(first.inserted));
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
            for leased in page {
                // Others may have a letter whose lease has ended by now; a later page brings it again.
                if Instant::now() < requested + leased.granted.unwrap_or(HOLD) {
                    self.look(pass, leased, tell).await;
                }
            }
            if pages_of_new >= max_new_pages {
                if is_partial {
                    pass.report.stopped = Some(UNCERTAIN_END.to_owned());
                }
                return Ok(());
            }
        }
        Ok(())
    }

    async fn page(&self) -> Result<Received, Error> {
        let get = GetMessages::new(MAX_MESSAGES, HOLD);
        match self.core.store().get(&self.name, get).await {
            Ok(received) => Ok(received),
            Err(e) if e.kind() == StoreErrorKind::QueueNotFound => Ok(Received::default()),
            Err(e) => Err(e.into()),
        }
    }

    async fn look(&self, pass: &mut Pass<'_>, leased: LeasedMessage, tell: &mut Listener<'_>) {
        let LeasedMessage { message, text, inserted, dead, group, .. } = leased;
        if !pass.looked_at.insert(message.id.clone()) {
            return pass.held.push(message);
        }
        let is_over = pass.is_full() || pass.report.stopped.is_some();
        let is_new = pass.began.is_some_and(|began| inserted > began);
        pass.report.newer += u64::from(is_new);
        if is_over || is_new {
            return pass.leave(message);
        }
        let found = Found { id: &message.id, inserted, cause: dead.as_ref() };
        let (entry, letter) = match &text {
            Ok(text) => {
                let entry = DeadLetterEntry::read(text);
                let letter = self.letter(&entry, text, found);
                (entry, letter)
            }
            Err(problem) => (DeadLetterEntry::External, self.letter_without_text(problem, &found)),
        };
        if !pass.options.picks(&letter) {
            return pass.leave(message);
        }
        let held = Held { message, entry, letter, inserted, group };
        match pass.seen.turn(&held, pass.began) {
            Turn::Leave => pass.leave(held.message),
            Turn::First => self.first(pass, held, tell).await,
            Turn::Duplicate if pass.action == PassAction::Tell => pass.held.push(held.message),
            Turn::Duplicate => self.duplicate(pass, held).await,
        }
    }

    /// Deletes a copy of a letter that was put back or deleted, or that still lies here.
    async fn duplicate(&self, pass: &mut Pass<'_>, held: Held) {
        if let Err(error) = self.discard(&held).await {
            pass.skip(held, &error, false);
        }
    }

    /// Returns false if the letter is a copy of another one that some pass has claimed.
    async fn claim(&self, held: &Held, action: PassAction) -> Result<bool, Error> {
        match &held.entry {
            DeadLetterEntry::Event(letter) if action != PassAction::Tell => {
                claim_letter(&self.core, letter).await
            }
            _ => Ok(true),
        }
    }

    async fn first(&self, pass: &mut Pass<'_>, held: Held, tell: &mut Listener<'_>) {
        match self.claim(&held, pass.action).await {
            Ok(true) => {}
            Ok(false) => return self.duplicate(pass, held).await,
            Err(error) => return pass.skip(held, &error, false),
        }
        let done = match pass.action {
            PassAction::Tell => Ok(()),
            PassAction::Delete => {
                pass.keep_to_the_rate().await;
                self.discard(&held).await.map_err(|error| (Put::No, error))
            }
            PassAction::PutBack => match held.letter.text_problem() {
                Some(problem) => Err((Put::No, unreadable(problem))),
                None => {
                    pass.keep_to_the_rate().await;
                    self.put_back(&held).await
                }
            },
        };
        match done {
            Ok(()) => {
                pass.failures = 0;
                pass.seen.done(&held, pass.action);
                tell(&held.letter);
                pass.report.moved.push(held.letter.id.clone());
                if pass.action == PassAction::Tell {
                    pass.held.push(held.message);
                }
            }
            Err((put, error)) => {
                if put == Put::Yes {
                    pass.seen.done(&held, pass.action);
                }
                pass.skip(held, &error, put != Put::No);
            }
        }
    }

    /// Makes the letters visible again that were only read.
    async fn release(&self, held: Vec<MessageRef>) {
        let release = async |message: MessageRef| {
            let update =
                UpdateMessage::new(Duration::ZERO).with_expired(ExpiredReceipt::Allow).ending_lease();
            if let Err(error) = self.core.store().update(&self.name, &message, update).await {
                tracing::debug!(queue = %self.name, %error, "a dead letter stays invisible for up to 10 minutes");
            }
        };
        stream::iter(held).for_each_concurrent(RELEASED_AT_ONCE, release).await;
    }
}
