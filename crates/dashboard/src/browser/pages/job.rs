//! The page of a job: its data, its state, its obstacles, its history and its cancellation.

use askama::Template;
use jobqueue_admin::{
    Action, Cancellation, Explanation, HistoryFilter, HistoryRecord, JobPlace, JobReference, RawJob,
    RawPayload,
};

use super::rows::{Run, job_query, letter_query, place, redacted, shown};
use super::search::until;
use super::timeline::{Moment, moments};
use super::{Answer, Layout, PageError, in_part_time, jobs, part};
use crate::browser::app::AuthorizedRequest;
use crate::browser::fields::{Fields, Given};
use crate::browser::filters;
use crate::browser::links::trace_id;
use crate::browser::log;
use crate::browser::looks::Look;
use crate::browser::redact::Field;
use crate::browser::text::{Timed, When, amount, beginning, block, error_text, indented, line};

/// The maximum number of ends of the job that the page shows.
const MAX_ENDS: usize = 20;
const MAX_HEADERS: usize = 100;
/// The seconds for which an open page of a job that is gone is still refreshed, until the journal has the end
/// of the job: workers write the journal every 15 seconds.
const JOURNAL_SECONDS: u64 = 20;

#[derive(Template)]
#[template(path = "job.html")]
struct JobPage {
    layout: Layout,
    queue: String,
    id_text: String,
    query: String,
    /// The query that names the shown dead letter.
    letter: String,
    path: String,
    place: &'static str,
    summary: Timed,
    reasons: Vec<(&'static str, Timed)>,
    runs: Vec<Run>,
    facts: Vec<(&'static str, String)>,
    /// The links to other systems, each with its text.
    links: Vec<(&'static str, String)>,
    batch: Option<(String, String)>,
    /// True if a batch may wait for the job, even if that batch could not be read.
    may_be_child: bool,
    headers: Vec<(String, String)>,
    /// The number of headers that are not shown.
    more_headers: usize,
    moments: Vec<Moment>,
    /// The time back to which the journal was searched, and the page that continues the search, if there may
    /// be more entries.
    older: Option<(When, String)>,
    /// The reason why the journal cannot be read.
    unread_journal: Option<String>,
    /// The seconds for which an open page is still refreshed, if the job is gone and has no end in the
    /// journal.
    again: Option<u64>,
    cancellation: Option<Timed>,
    payload: Option<Content>,
    checkpoint: Option<Content>,
    may_cancel: bool,
    may_run_now: bool,
    may_redrive: bool,
    may_purge: bool,
    may_copy: bool,
    is_dead: bool,
    has_message: bool,
}

struct Content {
    about: String,
    /// The text, if the viewer has asked for it.
    text: Option<Result<(String, usize), String>>,
}

pub(crate) fn reference(fields: &Fields) -> Result<JobReference, PageError> {
    let job = JobReference::new(fields.required("queue")?, fields.required("id")?);
    Ok(job.given(fields.exact("source"), JobReference::with_source))
}

/// Returns the path of the page that searches the journal further back for the job.
fn older(job: &JobReference, time: &str) -> String {
    until([("id", job.id.as_str()), ("queue", job.queue.as_str())].into_iter(), time)
}

fn path(job: &JobReference) -> String {
    format!("job?{}", query(job))
}

fn query(job: &JobReference) -> String {
    job_query(&job.queue, job.source.as_deref().unwrap_or_default(), &job.id)
}

pub(crate) async fn show(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let job = reference(&fields)?;
    let look = request.app.looks.latest().await?;
    let admin = &request.app.admin;
    let found = request.app.reads.get(&path(&job), admin.explain(&job)).await?;
    // Names the sender, which the address may omit.
    let identified = found.reference();
    let (ended, searched_to, unread_journal) = journal(&request, &identified, is_open(&found)).await?;
    let message = found.message.as_ref();
    let (payload, checkpoint) = contents(&request, message, fields.text("show") == Some("content")).await;
    let access = request.admin.access();
    let (place, summary, reasons) = place_and_reasons(&request, &found, has_ended(&found));
    let mut layout = Layout::new(&request, "", format!("Job {}", line(&job.id)))
        .with_look(&look)
        .noticed(fields.text("done"));
    // The job may be on its way to a queue or to the journal.
    let again = (found.has_ended && found.place == JobPlace::Unseen).then_some(JOURNAL_SECONDS);
    layout = if is_live(&request, &found) || again.is_some() { layout.live(&request, &look) } else { layout };
    let page = JobPage {
        queue: job.queue.clone(),
        id_text: line(&job.id),
        path: path(&job),
        // Several senders may use this id: this names the shown job.
        letter: message.map(letter_query).unwrap_or_default(),
        query: query(&identified),
        place,
        summary,
        reasons,
        runs: runs(&request, &look, &found),
        facts: facts(&request, &found, ended.first()),
        links: request.app.links.of(&found, ended.first()),
        batch: message.and_then(batch_of),
        may_be_child: message.is_some_and(RawJob::may_be_child),
        headers: headers(&request, message),
        more_headers: message.map_or(0, |message| message.headers.len().saturating_sub(MAX_HEADERS)),
        moments: moments(&request, &found, &ended),
        older: searched_to.as_deref().map(|time| (When::read(time), older(&job, time))),
        unread_journal,
        again,
        cancellation: cancellation(&found),
        payload,
        checkpoint,
        may_cancel: access.allows(Action::Cancel) && can_be_cancelled(&found),
        may_run_now: access.allows(Action::RunNow) && waits_for_a_time(&found) && admin.makes_jobs_due(),
        may_redrive: access.allows(Action::Redrive),
        may_purge: access.allows(Action::Purge),
        may_copy: access.allows(Action::Send) && !request.app.redactor.hides(),
        is_dead: found.place == JobPlace::Dead,
        has_message: message.is_some(),
        layout,
    };
    Ok(Answer::Page(page.render()?))
}

/// Returns whether the page is refreshed while it is open. Three pages are too expensive for that: an ordered
/// job that does not run reads the logs of all keys of its queue, an ended job is searched among all
/// messages, and a search that went beyond the first 1,000 messages of a state would do so again.
fn is_live(request: &AuthorizedRequest, found: &Explanation) -> bool {
    let may_wait = found.place != JobPlace::Running;
    let is_in_order = may_wait && found.message.as_ref().is_some_and(|message| message.in_order);
    let was_missed = found.place == JobPlace::Unseen && request.app.admin.shows_all_jobs();
    !found.has_ended && !is_in_order && !was_missed && !found.has_long_search
}

/// Returns whether the job may wait or run, as far as its queue and the records of workers show.
fn is_open(found: &Explanation) -> bool {
    match found.place {
        JobPlace::Dead | JobPlace::Ended => false,
        JobPlace::Unseen => !found.has_ended,
        _ => true,
    }
}

/// Returns the ends of the job in the journal, the time back to which the journal was searched, and the
/// reason if it cannot be read. While the job `is_open`, the journal is read once a minute: it has only
/// earlier ends of its id, unless the storage does not show the job, and in blobs it costs up to 500 requests.
async fn journal(
    request: &AuthorizedRequest,
    job: &JobReference,
    is_open: bool,
) -> Result<(Vec<HistoryRecord>, Option<String>, Option<String>), PageError> {
    let filter = HistoryFilter::new().queue(&job.queue).id(&job.id).limit(MAX_ENDS);
    let read = request.app.admin.history(&filter);
    let page = if is_open {
        // Another key, so that the end is read as soon as the job has left its queue.
        in_part_time(request.app.reads.get_rare_part(&format!("open {}", path(job)), read)).await?
    } else {
        part(request, &path(job), read).await?
    };
    let page = match page {
        Ok(page) => page,
        Err(reason) => return Ok((Vec::new(), None, Some(reason))),
    };
    let of_sender =
        |record: &&HistoryRecord| job.source.as_ref().is_none_or(|source| record.source == *source);
    let ended = page.jobs.iter().filter(of_sender).cloned().collect();
    Ok((ended, page.searched_to.clone(), None))
}

/// Returns the path and the text of the batch that the job belongs to.
fn batch_of(message: &RawJob) -> Option<(String, String)> {
    let batch = message.batch.as_ref()?;
    Some((crate::browser::text::encoded(&batch.id), line(&batch.id)))
}

/// Returns the state of the job's cancellation, if it was requested.
fn cancellation(found: &Explanation) -> Option<Timed> {
    let state = Some(&found.cancellation).filter(|state| **state != Cancellation::None);
    state.map(|state| Timed::of(&line(&state.to_string())))
}

/// Returns whether cancelling the job makes sense: a message of the job may wait or run, and no cancellation
/// is pending. If the storage does not show the message, a recorded cancellation may belong to an earlier job
/// with this id.
fn can_be_cancelled(found: &Explanation) -> bool {
    let may_be_another = match found.cancellation {
        Cancellation::None => true,
        Cancellation::Requested { .. } => false,
        _ => found.place == JobPlace::Unseen,
    };
    !found.has_ended && may_be_another
}

fn waits_for_a_time(found: &Explanation) -> bool {
    matches!(found.place, JobPlace::Delayed | JobPlace::BackingOff)
}

/// Returns whether the history has the end of this job, and not only the end of an earlier job with its id.
fn has_ended(found: &Explanation) -> bool {
    let may_be_another = found.reasons.iter().any(|reason| reason.code == "ended_once");
    found.place == JobPlace::Ended && found.has_ended && !may_be_another
}

/// Returns the place of the job, a sentence about it, and the reasons why the job does not run.
fn place_and_reasons(
    request: &AuthorizedRequest,
    found: &Explanation,
    has_ended: bool,
) -> (&'static str, Timed, Vec<(&'static str, Timed)>) {
    if has_ended {
        return ("ended", Timed::of("It has ended; see the history."), Vec::new());
    }
    let reasons = found.reasons.iter().map(|reason| (reason.code, explained(request, found, &reason.text)));
    (place(found.place), explained(request, found, &found.summary), reasons.collect())
}

/// Returns a sentence about the job, which may quote its last error.
fn explained(request: &AuthorizedRequest, found: &Explanation, text: &str) -> Timed {
    let of_message = found.message.as_ref().map(|message| message.kind.as_str());
    let kind = of_message.or(found.run.as_ref().map(|run| run.kind.as_str())).unwrap_or_default();
    Timed::of(&shown(request, &found.job.queue, kind, Field::Error, text))
}

fn runs(request: &AuthorizedRequest, look: &Look, found: &Explanation) -> Vec<Run> {
    let (Some(run), Some(worker)) = (&found.run, &found.worker) else { return Vec::new() };
    let worker = look.workers().iter().find(|known| known.record.id == *worker);
    // The worker may be newer than the last look. The next refresh shows it.
    worker.map(|worker| Run::new(request, worker, run)).into_iter().collect()
}

fn facts(
    request: &AuthorizedRequest,
    found: &Explanation,
    ended: Option<&HistoryRecord>,
) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    let trace =
        |trace: &Option<String>| trace.as_deref().and_then(trace_id).map(|id| ("Trace", id.to_owned()));
    if let Some(message) = &found.message {
        let shown = |field: Field<'_>, text: &str| shown(request, &message.queue, &message.kind, field, text);
        facts.push(("Kind", line(&message.kind)));
        facts.extend(message.version.map(|version| ("Version", version.to_string())));
        facts.push(("Sender", line(&message.source)));
        facts.extend(message.key.as_deref().map(|key| ("Key", shown(Field::Key, key))));
        facts.push(("Failed attempts", message.attempts.to_string()));
        facts.push(("Deliveries", message.dequeue_count.to_string()));
        facts.extend(message.content_type.as_deref().map(|form| ("Media type", line(form))));
        facts.extend(message.in_order.then(|| ("Order", "runs in the order of its key".to_owned())));
        facts.extend(message.problem.as_deref().map(|problem| ("Problem", shown(Field::Error, problem))));
        facts.extend(trace(&message.trace));
    } else if let Some(run) = &found.run {
        facts.push(("Kind", line(&run.kind)));
        facts.push(("Sender", line(&run.source)));
        facts.extend(
            run.key.as_deref().map(|key| ("Key", shown(request, &run.queue, &run.kind, Field::Key, key))),
        );
        facts.extend(trace(&run.trace));
    } else if let Some(ended) = ended {
        facts.push(("Kind", line(&ended.kind)));
        facts.push(("Sender", line(&ended.source)));
        let key = ended.key.as_deref();
        facts.extend(key.map(|key| ("Key", shown(request, &ended.queue, &ended.kind, Field::Key, key))));
        facts.push(("Attempts", ended.attempt.to_string()));
        facts.extend(trace(&ended.trace));
    }
    facts
}

fn headers(request: &AuthorizedRequest, message: Option<&RawJob>) -> Vec<(String, String)> {
    let header = |message: &RawJob, name: &str, value: &str| {
        (line(name), shown(request, &message.queue, &message.kind, Field::Header(name), value))
    };
    let all = message.into_iter().flat_map(|message| message.headers.iter().map(move |pair| (message, pair)));
    all.take(MAX_HEADERS).map(|(message, (name, value))| header(message, name, value)).collect()
}

/// Returns the payload and the checkpoint of a job, with their texts if `wanted`.
async fn contents(
    request: &AuthorizedRequest,
    job: Option<&RawJob>,
    wanted: bool,
) -> (Option<Content>, Option<Content>) {
    let Some(job) = job else { return (None, None) };
    if wanted {
        log::payload_read(request, &job.reference());
    }
    let admin = &request.app.admin;
    let read = wanted.then(|| admin.payload(job));
    let payload = content(request, job, Field::Payload, &job.payload, read).await;
    let read = wanted.then(|| admin.checkpoint(job));
    (payload, content(request, job, Field::Checkpoint, &job.checkpoint, read).await)
}

/// Returns a payload or a checkpoint, with the text that `read` reads if given; `None` if the job has none.
async fn content(
    request: &AuthorizedRequest,
    job: &RawJob,
    field: Field<'_>,
    stored: &RawPayload,
    read: Option<impl Future<Output = Result<RawPayload, jobqueue::Error>>>,
) -> Option<Content> {
    let place = match stored {
        RawPayload::None => return None,
        RawPayload::Blob(blob) => format!(" in the blob {}", line(&blob.name)),
        _ => String::new(),
    };
    let about = format!("{} bytes{place}", amount(stored.bytes()));
    let Some(read) = read else { return Some(Content { about, text: None }) };
    let shown = |payload: RawPayload| {
        let (text, missing) = match payload {
            RawPayload::Json(json) => indented(json.get()),
            RawPayload::Text(text) => beginning(&text),
            RawPayload::Bytes(bytes) => {
                std::str::from_utf8(&bytes).map_or_else(|_| hexadecimal(&bytes), beginning)
            }
            _ => (String::new(), 0),
        };
        let (text, cut) = block(&redacted(request, &job.queue, &job.kind, field, &text));
        (text, missing + cut)
    };
    // The payload is dropped before another large one is read.
    let read = async { read.await.map(shown) };
    let text = request.app.reads.get_sized(stored.bytes(), read).await;
    Some(Content { about, text: Some(text.map_err(|error| error_text(&format!("{error:?}")))) })
}

/// Returns the first bytes as hexadecimal digits, and the number of the remaining bytes.
fn hexadecimal(bytes: &[u8]) -> (String, usize) {
    const MAX_BYTES: usize = 4096;
    let lines = bytes.chunks(16).take(MAX_BYTES / 16);
    let digits = |line: &[u8]| line.iter().map(|byte| format!("{byte:02x} ")).collect::<String>();
    let text = lines.map(|line| digits(line).trim_end().to_owned()).collect::<Vec<_>>().join("\n");
    (text, bytes.len().saturating_sub(MAX_BYTES))
}

/// Cancels the jobs of a preview, or one job.
pub(crate) async fn cancel(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    if let Some(preview) = fields.text("plan") {
        return jobs::cancel(&request, preview);
    }
    let job = reference(&fields)?;
    let job = request.admin.identify(&job).await?;
    let report = request.admin.cancel(&job).await?;
    let done = if report.workers > 0 { "cancel" } else { "cancel-unserved" };
    Ok(Answer::Go(format!("{}&done={done}", path(&job))))
}

/// Makes the jobs of a preview due now, or one job.
pub(crate) async fn run_now(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    if let Some(preview) = fields.text("plan") {
        return jobs::run_now(&request, preview);
    }
    let job = reference(&fields)?;
    let made = request.admin.run_now(&job).await?;
    let done = if made.is_some() { "due" } else { "not-delayed" };
    Ok(Answer::Go(format!("{}&done={done}", path(&made.unwrap_or(job)))))
}
