//! The events of each action that changes something: before it starts, and when it has ended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::SystemTime;

use jobqueue::job::BoxError;
use jobqueue::{Error, ErrorKind, Runtime, Storage};
use jobqueue_storage::log::guarded;
use jobqueue_storage::text::{beginning, chain};
use serde::Serialize;

use super::JobReference;
use super::access::Action;
use super::text::rfc3339;

/// The most bytes of the subject and of the selection of an event. Otherwise a request of megabytes could
/// fill the audit disk, which blocks all changes.
const MAX_TEXT: usize = 16 * 1024;

/// An event of an operator's action. There is one event before the action starts and one when it has ended.
/// An action that is refused, or whose start cannot be recorded, has only the second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct OperatorEvent {
    /// The time of the event.
    #[serde(serialize_with = "rfc3339")]
    pub at: SystemTime,
    /// The id of the action, the same in both its events.
    pub id: String,
    /// The storage, by its [description](Storage::description).
    pub storage: String,
    /// The operator's name, as the embedding program set it.
    pub operator: String,
    /// The action.
    pub action: Action,
    /// The object of the action: a queue, a schedule, or a queue and a job. At most 16 KiB, like the
    /// selection.
    pub subject: String,
    /// The selected part of the object: the filter or the plan, limit and rate. Empty if the action takes the
    /// whole object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub selection: String,
    /// Before the action, and if it fails: the jobs that were named for it. When it is done: the jobs that it
    /// has changed or may have changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobReference>,
    /// The result.
    #[serde(flatten)]
    pub result: OperatorResult,
}

/// The result of an operator's action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "result", content = "detail", rename_all = "snake_case")]
#[non_exhaustive]
pub enum OperatorResult {
    /// The action starts. If no event with the same id follows, the process died: a part may be done.
    Started,
    /// The action was performed; the text describes its changes.
    Done(String),
    /// The operator's access level does not allow the action; nothing was changed.
    Refused(String),
    /// The action failed; the text says why, and whether a part was done.
    Failed(String),
    /// The caller dropped the action before it ended; a part may be done.
    Interrupted,
}

impl OperatorResult {
    fn of_error(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Forbidden => Self::Refused(error.to_string()),
            _ => Self::Failed(chain(error)),
        }
    }
}

/// The object of an action, its selected part, and the jobs that were named for it.
#[derive(Debug, Clone, Default)]
pub(super) struct ActionTarget {
    pub(super) subject: String,
    pub(super) selection: String,
    pub(super) jobs: Vec<JobReference>,
}

impl From<String> for ActionTarget {
    fn from(subject: String) -> Self {
        Self { subject, ..Self::default() }
    }
}

impl From<&str> for ActionTarget {
    fn from(subject: &str) -> Self {
        subject.to_owned().into()
    }
}

impl ActionTarget {
    pub(super) fn of_job(job: &JobReference) -> Self {
        Self { jobs: vec![job.clone()], ..format!("job {} of queue {}", job.id, job.queue).into() }
    }
}

/// The result of an action that was performed.
#[derive(Debug)]
pub(super) struct ActionResult {
    pub(super) detail: String,
    pub(super) jobs: Vec<JobReference>,
}

type Recorder = Arc<dyn Fn(&OperatorEvent) -> Result<(), BoxError> + Send + Sync>;

#[derive(Clone, Default)]
pub(super) struct Recorders(Vec<Recorder>);

impl Recorders {
    pub(super) fn add(
        &mut self,
        recorder: impl Fn(&OperatorEvent) -> Result<(), BoxError> + Send + Sync + 'static,
    ) {
        self.0.push(Arc::new(recorder));
    }

    /// Adds a listener whose failure does not affect the action.
    pub(super) fn add_listener(&mut self, listener: impl Fn(&OperatorEvent) + Send + Sync + 'static) {
        self.add(move |event| {
            if catch_unwind(AssertUnwindSafe(|| listener(event))).is_err() {
                guarded(|| {
                    tracing::error!("a listener of operator events panicked; the action is not affected")
                });
            }
            Ok(())
        });
    }

    fn record(&self, event: &OperatorEvent) -> Result<(), BoxError> {
        guarded(|| {
            tracing::info!(
                id = event.id,
                storage = event.storage,
                operator = %event.operator.escape_debug(),
                action = %event.action,
                subject = %event.subject.escape_debug(),
                selection = %event.selection.escape_debug(),
                result = ?event.result,
                "operator action"
            );
        });
        let record = |recorder: &Recorder| {
            let recorded = catch_unwind(AssertUnwindSafe(|| recorder(event)));
            recorded.unwrap_or_else(|_| Err("the recorder panicked".into()))
        };
        // Every recorder gets the event, even if one of them fails.
        self.0.iter().map(record).fold(Ok(()), Result::and)
    }
}

/// Cuts a text after [`MAX_TEXT`] bytes, and appends the length of the whole text.
fn bounded(text: String) -> String {
    match beginning(&text, MAX_TEXT) {
        whole if whole.len() == text.len() => text,
        cut => format!("{cut}… ({} bytes)", text.len()),
    }
}

/// An action in progress. Dropping it before its end records an interruption.
pub(super) struct Pending<'a> {
    recorders: &'a Recorders,
    event: Option<OperatorEvent>,
    runtime: &'a Runtime,
}

impl<'a> Pending<'a> {
    pub(super) fn new(
        recorders: &'a Recorders,
        storage: &'a Storage,
        operator: &str,
        action: Action,
        target: ActionTarget,
    ) -> Self {
        let ActionTarget { subject, selection, jobs } = target;
        let runtime = storage.runtime();
        let event = OperatorEvent {
            at: runtime.clock().now(),
            id: runtime.uuid_v4().to_string(),
            storage: storage.description().to_owned(),
            operator: operator.to_owned(),
            action,
            subject: bounded(subject),
            selection: bounded(selection),
            jobs,
            result: OperatorResult::Started,
        };
        Self { recorders, event: Some(event), runtime }
    }

    /// Records the start of the action. If this fails, the action must not start.
    pub(super) fn started(&mut self) -> Result<(), Error> {
        let Some(event) = &mut self.event else { return Ok(()) };
        let recorded = self.recorders.record(event);
        event.result = OperatorResult::Interrupted;
        let Err(error) = recorded else { return Ok(()) };
        let text = "nothing was changed, because the action cannot be recorded";
        event.result = OperatorResult::Failed(text.to_owned());
        event.at = self.runtime.clock().now();
        // A start without an end would mean that a part may be done. A recorder that failed may have kept the
        // start, for example in a file that could not be synced.
        let _ = self.recorders.record(event);
        self.event = None;
        Err(Error::new(ErrorKind::Storage, text).with_source(error))
    }

    /// Records the end of the action, with its `result` if it was done.
    pub(super) fn ended(mut self, result: Result<ActionResult, &Error>) -> Result<(), Error> {
        let Some(mut event) = self.event.take() else { return Ok(()) };
        event.result = match result {
            Ok(result) => {
                event.jobs = result.jobs;
                OperatorResult::Done(result.detail)
            }
            Err(error) => OperatorResult::of_error(error),
        };
        event.at = self.runtime.clock().now();
        self.recorders.record(&event).map_err(|error| {
            let text = match &event.result {
                OperatorResult::Done(done) => {
                    format!("the action was done ({done}), but its end could not be recorded")
                }
                OperatorResult::Refused(_) => {
                    "nothing was changed, and that could not be recorded".to_owned()
                }
                _ => "the action failed, and that could not be recorded".to_owned(),
            };
            Error::new(ErrorKind::Storage, text).with_source(error)
        })
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(mut event) = self.event.take() {
            event.at = self.runtime.clock().now();
            if let Err(error) = self.recorders.record(&event) {
                let text = "an action was interrupted, and that could not be recorded";
                guarded(|| tracing::error!(%error, "{text}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{AccessLevel, Admin};

    #[test]
    fn text_of_an_event_is_bounded() {
        let subjects = Arc::<Mutex<Vec<String>>>::default();
        let recorded = Arc::clone(&subjects);
        let admin = Admin::builder(Storage::memory());
        let admin = admin.on_event(move |event| recorded.lock().unwrap().push(event.subject.clone())).build();
        let text = "ä".repeat(MAX_TEXT);
        admin.require(Action::Pause, &text).unwrap_err();
        let subjects = subjects.lock().unwrap();
        let note = format!("… ({} bytes)", text.len());
        assert!(subjects[0].ends_with(&note));
        assert!(subjects[0].len() <= MAX_TEXT + note.len());
    }

    // No such error may say that something was changed which was not.
    #[test]
    fn end_that_cannot_be_recorded_says_what_it_was() {
        let (mut recorders, storage) = (Recorders::default(), Storage::memory());
        recorders.add(|_| Err("the disk is full".into()));
        let unrecorded = |kind| {
            let pending = Pending::new(&recorders, &storage, "ada", Action::Pause, "queue mails".into());
            pending.ended(Err(&Error::new(kind, "refused"))).unwrap_err().to_string()
        };
        assert!(unrecorded(ErrorKind::Forbidden).starts_with("nothing was changed"));
        assert!(unrecorded(ErrorKind::Storage).starts_with("the action failed"));
        let pending = Pending::new(&recorders, &storage, "ada", Action::Inspect, "queue mails".into());
        let looked_at = ActionResult { detail: "3 looked at".to_owned(), jobs: Vec::new() };
        let inspected = pending.ended(Ok(looked_at)).unwrap_err().to_string();
        assert!(inspected.starts_with("the action was done (3 looked at)"), "{inspected}");
    }

    #[tokio::test]
    async fn beginning_that_cannot_be_recorded_has_an_end() {
        let results = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&results);
        let admin = Admin::builder(Storage::memory())
            .access(AccessLevel::Operate)
            .audit(move |event| {
                recorded.lock().map_err(|_| "poisoned")?.push(event.result.clone());
                Err("the line is written, but not synced".into())
            })
            .build();
        admin.create_queue("mails").await.unwrap_err();
        let results = results.lock().unwrap();
        assert!(matches!(results[..], [OperatorResult::Started, OperatorResult::Failed(_)]), "{results:?}");
    }
}
