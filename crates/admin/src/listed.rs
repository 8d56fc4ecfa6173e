//! Pages of messages, from the index of a storage or from its log.

use std::time::SystemTime;

pub(super) use jobqueue::__internals::LOG_SEARCH_TIME;
use jobqueue::storage::{LogPage, LoggedState, MessagePage, PeekedMessage, QueueName, StoreErrorKind};
use jobqueue::{Error, ErrorKind};

use super::queues::not_found;
use super::{Admin, JobState};

const HIDES_LEASES: &str = "this storage does not show which jobs run: list the waiting jobs, among which they are, or the workers with their jobs";
const SHOWS_ONE_STATE: &str = "this storage shows the jobs of one state at a time";
const SHOWS_NO_JOBS: &str = "this storage shows only the first 32 visible messages of a queue";

/// The messages of a queue among which a search looks for one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SearchReach {
    /// The messages that a peek shows.
    Peeked,
    /// The first messages of each state.
    OfEachState,
    /// The messages that can be read within [`LOG_SEARCH_TIME`].
    InTime,
}

/// A page of messages.
pub(super) struct ListedPage {
    pub(super) messages: Vec<ListedMessage>,
    /// The end of the page, if there may be further messages.
    pub(super) next: Option<String>,
    /// True if there may be messages that no page shows, or one could not be read as it is.
    pub(super) is_partial: bool,
}

pub(super) struct ListedMessage {
    pub(super) message: PeekedMessage,
    /// The state; a log shows running jobs as waiting.
    pub(super) state: JobState,
    pub(super) due: Option<SystemTime>,
}

impl Admin {
    /// Returns whether the storage has an index of its messages, which shows all jobs exactly, and can make
    /// them due.
    pub(super) fn has_index(&self) -> bool {
        self.storage.queues().powers().index.is_some()
    }

    /// Returns whether the storage shows its jobs by a log, which does not show which of them run.
    pub(super) fn has_log(&self) -> bool {
        !self.has_index() && self.storage.queues().powers().log.is_some()
    }

    pub(super) fn search_reach(&self) -> SearchReach {
        match (self.has_index(), self.has_log()) {
            (true, _) => SearchReach::OfEachState,
            (false, true) => SearchReach::InTime,
            (false, false) => SearchReach::Peeked,
        }
    }

    /// Returns the searches that together find the jobs of a queue in every state. One walk through a log
    /// finds all.
    pub(super) fn searched_states(&self) -> Vec<Option<JobState>> {
        if self.has_index() { JobState::IN_QUEUE.map(Some).to_vec() } else { vec![None] }
    }

    /// Returns up to `count` messages of one state, or of every state if the storage has a log.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if the storage does not show these messages, or no page ended at
    /// `from`; [`NotFound`](ErrorKind::NotFound); [`Storage`](ErrorKind::Storage).
    pub(super) async fn list(
        &self,
        queue: &QueueName,
        state: Option<JobState>,
        from: Option<&str>,
        count: u32,
    ) -> Result<ListedPage, Error> {
        let invalid = |text| Error::new(ErrorKind::Invalid, text);
        if state == Some(JobState::Dead) {
            return Err(invalid("dead letters are in a queue of their own; list those"));
        }
        let powers = self.storage.queues().powers();
        let read = match (&powers.index, &powers.log) {
            (Some(index), _) => {
                let state = state.ok_or_else(|| invalid(SHOWS_ONE_STATE))?;
                let of_messages = state.of_messages().ok_or_else(|| invalid(SHOWS_ONE_STATE))?;
                let page = index.messages(queue, of_messages, from, count).await;
                page.map(|page| ListedPage::of_index(page, state))
            }
            (None, Some(_)) if state == Some(JobState::Running) => return Err(invalid(HIDES_LEASES)),
            (None, Some(log)) => {
                let page = log.logged(queue, state.and_then(of_log), from, count).await;
                page.map(ListedPage::of_log)
            }
            (None, None) => return Err(invalid(SHOWS_NO_JOBS)),
        };
        read.map_err(|error| match error.kind() {
            StoreErrorKind::InvalidInput if from.is_some() => {
                invalid("no search ended at the place where this one is to begin").with_source(error)
            }
            _ => not_found(error, queue),
        })
    }
}

impl ListedPage {
    fn of_index(page: MessagePage, state: JobState) -> Self {
        let messages = page.messages.into_iter();
        let messages = messages.map(|(message, due)| ListedMessage { message, state, due: Some(due) });
        Self { messages: messages.collect(), next: page.next, is_partial: false }
    }

    fn of_log(page: LogPage) -> Self {
        let messages = page.messages.into_iter().map(|logged| ListedMessage {
            message: logged.message,
            state: shown_as(logged.state),
            due: logged.due,
        });
        Self { messages: messages.collect(), next: page.next, is_partial: page.is_partial }
    }
}

fn of_log(state: JobState) -> Option<LoggedState> {
    match state {
        JobState::Waiting => Some(LoggedState::Active),
        JobState::Delayed => Some(LoggedState::Delayed),
        JobState::BackingOff => Some(LoggedState::BackingOff),
        JobState::Running | JobState::Dead => None,
    }
}

fn shown_as(state: LoggedState) -> JobState {
    match state {
        LoggedState::Active => JobState::Waiting,
        LoggedState::Delayed => JobState::Delayed,
        LoggedState::BackingOff => JobState::BackingOff,
    }
}
