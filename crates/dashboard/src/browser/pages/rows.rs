//! Rows that several pages show: running jobs, messages, and groups of errors.

use std::time::SystemTime;

use jobqueue_admin::{ErrorGroup, JobPlace, RawJob, RunningJob, WorkerOverview};

use crate::browser::app::AuthorizedRequest;
use crate::browser::redact::{Field, Shown};
use crate::browser::selection::Selection;
use crate::browser::text::{When, age, encoded, line};

/// Returns the path of a job's page from the root of the dashboard.
pub(crate) fn job_path(queue: &str, source: &str, id: &str) -> String {
    format!("job?{}", job_query(queue, source, id))
}

/// Returns the query that names a job. Forms name the job in their address as well, because browsers change
/// line breaks in fields.
pub(crate) fn job_query(queue: &str, source: &str, id: &str) -> String {
    let source = if source.is_empty() { String::new() } else { format!("&source={}", encoded(source)) };
    format!("queue={}&id={}{source}", encoded(queue), encoded(id))
}

/// Returns the query that names a dead letter. Another dead letter of the same job has another query.
pub(crate) fn letter_query(job: &RawJob) -> String {
    let dead = job.dead.as_ref();
    let letter = match dead.map(|dead| (dead.message.as_deref(), dead.inserted)) {
        Some((Some(message), _)) => format!("&message={}", encoded(message)),
        // The letter names no message. A later letter of its job is excluded by its time.
        Some((None, Some(inserted))) => {
            exact_time(inserted).map_or_else(String::new, |time| format!("&before={}", encoded(&time)))
        }
        _ => String::new(),
    };
    job_query(&job.queue, &job.source, &job.id) + &letter
}

/// Returns a time as a form and an address hold it, with its fractions of a second.
pub(crate) fn exact_time(time: SystemTime) -> Option<String> {
    jiff::Timestamp::try_from(time).ok().map(|time| time.to_string())
}

/// Returns the words for the place of a job.
pub(crate) fn place(place: JobPlace) -> &'static str {
    match place {
        JobPlace::Running => "running",
        JobPlace::Waiting => "waiting",
        JobPlace::Delayed => "delayed",
        JobPlace::BackingOff => "backing off",
        JobPlace::Ended => "ended",
        JobPlace::Dead => "dead",
        _ => "not seen",
    }
}

/// Returns a text of a job in one line, redacted by the embedding program. `kind` is empty if it is unknown.
pub(crate) fn shown(
    request: &AuthorizedRequest,
    queue: &str,
    kind: &str,
    field: Field<'_>,
    text: &str,
) -> String {
    line(&redacted(request, queue, kind, field, text))
}

/// Returns a text of a job like [`shown`], but with its line breaks and its whole length.
pub(crate) fn redacted(
    request: &AuthorizedRequest,
    queue: &str,
    kind: &str,
    field: Field<'_>,
    text: &str,
) -> String {
    let kind = Some(kind).filter(|kind| !kind.is_empty());
    let (operator, access) = (request.admin.operator(), request.admin.access());
    request.app.redactor.apply(&Shown { queue, kind, field, text, operator, access })
}

pub(crate) struct Run {
    pub(crate) path: String,
    pub(crate) queue: String,
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) attempt: u32,
    pub(crate) max_attempts: u32,
    pub(crate) since: When,
    pub(crate) ran: String,
    pub(crate) progress: Option<RunProgress>,
    pub(crate) worker: String,
    pub(crate) cancelling: bool,
}

pub(crate) struct RunProgress {
    pub(crate) done: u64,
    /// 0 if the total is unknown.
    pub(crate) total: u64,
    pub(crate) text: String,
}

impl Run {
    pub(crate) fn new(request: &AuthorizedRequest, worker: &WorkerOverview, job: &RunningJob) -> Self {
        let progress = job.progress.as_ref().map(|progress| RunProgress {
            done: progress.done,
            total: progress.total,
            text: shown(request, &job.queue, &job.kind, Field::Progress, &progress.text),
        });
        let ran = std::time::Duration::try_from_secs_f64(job.running_seconds + worker.age_seconds);
        Self {
            path: job_path(&job.queue, &job.source, &job.id),
            queue: line(&job.queue),
            id: line(&job.id),
            kind: line(&job.kind),
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            since: When::read(&job.since),
            ran: ran.map_or_else(|_| "-".to_owned(), age),
            progress,
            worker: line(&worker.record.name),
            cancelling: job.cancelling,
        }
    }
}

pub(crate) struct Message {
    pub(crate) path: String,
    pub(crate) id: String,
    pub(crate) query: String,
    pub(crate) key: String,
    pub(crate) kind: String,
    pub(crate) attempts: u32,
    pub(crate) inserted: Option<When>,
    /// The time at which the message becomes visible.
    pub(crate) due: Option<When>,
    pub(crate) error: String,
    pub(crate) reason: String,
    pub(crate) died: Option<When>,
    pub(crate) note: String,
}

impl Message {
    pub(crate) fn new(request: &AuthorizedRequest, job: &RawJob) -> Self {
        let error = job.last_error.as_deref().or(job.problem.as_deref());
        let deferral = job.deferral.as_ref().map(|deferral| format!("waits: {}", line(&deferral.cause)));
        let turn = job.in_order.then(|| "in order".to_owned());
        let notes: Vec<_> = deferral.into_iter().chain(turn).collect();
        let shown = |field: Field<'_>, text: &str| shown(request, &job.queue, &job.kind, field, text);
        Self {
            path: job_path(&job.queue, &job.source, &job.id),
            id: line(&job.id),
            query: letter_query(job),
            key: job.key.as_deref().map(|key| shown(Field::Key, key)).unwrap_or_default(),
            kind: line(&job.kind),
            attempts: job.attempts,
            inserted: job.inserted.as_deref().map(When::read),
            due: job.due.as_deref().map(When::read),
            error: error.map(|error| shown(Field::Error, error)).unwrap_or_default(),
            reason: job.dead.as_ref().map(|dead| line(&dead.reason)).unwrap_or_default(),
            died: job.dead.as_ref().and_then(|dead| dead.time.as_deref()).map(When::read),
            note: notes.join(", "),
        }
    }
}

/// A group of dead letters with the same error.
pub(crate) struct ErrorRow {
    pub(crate) queue: String,
    /// The query that selects these dead letters.
    pub(crate) query: String,
    pub(crate) error: String,
    pub(crate) reason: String,
    pub(crate) kind: String,
    pub(crate) versions: String,
    pub(crate) count: u64,
    pub(crate) first: Option<When>,
    pub(crate) last: Option<When>,
    /// The job that died last.
    pub(crate) path: String,
    pub(crate) id: String,
}

impl ErrorRow {
    /// The maximum number of groups on a page.
    const MAX_SHOWN: usize = 50;

    /// Returns the number of groups that a page does not show.
    pub(crate) fn unshown(errors: &[ErrorGroup]) -> usize {
        errors.len().saturating_sub(Self::MAX_SHOWN)
    }

    pub(crate) fn all(
        request: &AuthorizedRequest,
        queue: &str,
        selection: &Selection,
        errors: &[ErrorGroup],
    ) -> Vec<Self> {
        let row = |group: &ErrorGroup| {
            let versions: Vec<_> = group.versions.iter().map(u32::to_string).collect();
            let error = match group.error.as_str() {
                "" => "no error".to_owned(),
                error => shown(request, queue, &group.kind, Field::Error, error),
            };
            Self {
                queue: queue.to_owned(),
                query: selection.query_of_error(&group.fingerprint),
                error,
                reason: line(&group.reason),
                kind: line(&group.kind),
                versions: versions.join(", "),
                count: group.count,
                first: group.first.as_deref().map(When::read),
                last: group.last.as_deref().map(When::read),
                path: job_path(queue, group.sample.source.as_deref().unwrap_or_default(), &group.sample.id),
                id: line(&group.sample.id),
            }
        };
        errors.iter().take(Self::MAX_SHOWN).map(row).collect()
    }
}
