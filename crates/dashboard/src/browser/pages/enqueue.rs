//! The form that sends a job.

use askama::Template;
use jobqueue::SendOptions;
use jobqueue_admin::{Action, JobReference, ListeningQueue, RawJob, RawPayload, RawSend};

use super::job::reference;
use super::rows::job_path;
use super::{Answer, Layout, PageError};
use crate::browser::app::AuthorizedRequest;
use crate::browser::fields::{Fields, Given};
use crate::browser::log;
use crate::browser::text::line;

/// The maximum size of a payload that is copied into the form.
const MAX_COPIED_BYTES: u64 = 512 * 1024;

#[derive(Template)]
#[template(path = "send.html")]
struct Send {
    layout: Layout,
    queue: String,
    queues: Vec<String>,
    kinds: Vec<String>,
    may_send: bool,
    /// The kinds whose payloads are checked before they are sent, as a list for people.
    checked: String,
    /// The job whose data fill the form.
    copy: Option<Copied>,
}

/// A job whose data fill the form.
struct Copied {
    path: String,
    job: JobReference,
    id: String,
    kind: String,
    source: String,
    version: Option<u32>,
    key: String,
    content_type: String,
    payload: String,
}

pub(crate) async fn show(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let look = request.app.looks.latest().await?;
    let records = look.present().map(|worker| &worker.record);
    let mut kinds: Vec<String> = records
        .flat_map(|record| &record.queues)
        .flat_map(ListeningQueue::named_kinds)
        .map(str::to_owned)
        .collect();
    kinds.sort();
    kinds.dedup();
    let may_send = request.admin.access().allows(Action::Send);
    let page = Send {
        layout: Layout::new(&request, "send", "Send a job").with_look(&look),
        queue: fields.text("queue").unwrap_or_default().to_owned(),
        queues: look.queues().iter().map(|queue| queue.name.clone()).collect(),
        kinds,
        checked: request.admin.checked_kinds().join(", "),
        copy: if may_send { copied(&request, &fields).await? } else { None },
        may_send,
    };
    Ok(Answer::Page(page.render()?))
}

/// Returns the job that the address names; `None` if it names no job.
async fn copied(request: &AuthorizedRequest, fields: &Fields) -> Result<Option<Copied>, PageError> {
    if fields.exact("id").is_none() {
        return Ok(None);
    }
    require_shown(request)?;
    let job = reference(fields)?;
    let path = job_path(&job.queue, job.source.as_deref().unwrap_or_default(), &job.id);
    let found = request.app.reads.get(&path, request.app.admin.explain(&job)).await?;
    let message = found.message.as_ref().filter(|message| message.payload.bytes() <= MAX_COPIED_BYTES);
    let message = message
        .ok_or_else(|| PageError::missing("there is no such message, or it is too large for a form"))?;
    log::payload_read(request, &message.reference());
    let payload = request.app.reads.get_once(request.app.admin.payload(message)).await?;
    let RawPayload::Json(payload) = payload else {
        return Err(PageError::invalid("the payload is not JSON, so a form cannot hold it"));
    };
    Ok(Some(Copied {
        path,
        job: message.reference(),
        id: line(&message.id),
        kind: message.kind.clone(),
        // A text that is not an event has no sender.
        source: if message.kind.is_empty() { String::new() } else { message.source.clone() },
        version: message.version,
        key: message.key.clone().unwrap_or_default(),
        content_type: message.content_type.clone().unwrap_or_default(),
        payload: payload.get().to_owned(),
    }))
}

fn require_shown(request: &AuthorizedRequest) -> Result<(), PageError> {
    if request.app.redactor.hides() {
        return Err(PageError::forbidden("texts are hidden here, so a job cannot be copied"));
    }
    Ok(())
}

/// Returns the message of the job whose trace and headers the form asks for; `None` if it asks for none.
async fn original(request: &AuthorizedRequest, fields: &Fields) -> Result<Option<RawJob>, PageError> {
    let Some(id) = fields.exact("ofid") else { return Ok(None) };
    require_shown(request)?;
    let job = JobReference::new(fields.required("ofqueue")?, id)
        .given(fields.exact("ofsource"), JobReference::with_source);
    // The record of a worker shows a running job without its headers, and without its payload.
    let is_read = |message: &RawJob| !matches!(message.payload, RawPayload::None);
    let message = request.app.admin.explain(&job).await?.message.filter(is_read);
    let gone = "nothing was sent: the job with the trace and the headers is gone or cannot be read now; \
                empty the field of its id to send the job without them";
    message.map(Some).ok_or_else(|| PageError::missing(gone))
}

pub(crate) async fn send(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let (queue, kind) = (fields.required("queue")?, fields.required("kind")?);
    let job = RawSend::json(kind, fields.required("payload")?)?
        .given(fields.number::<u32>("version")?, RawSend::version)
        .given(fields.exact("id"), RawSend::id)
        .given(fields.exact("source"), RawSend::source)
        .given(fields.exact("key"), RawSend::key)
        .given(fields.text("contenttype"), RawSend::content_type)
        .given(fields.duration("delay")?, |job, delay| job.with(SendOptions::new().delay(delay)))
        .given(original(&request, &fields).await?, |job, original| job.in_context_of(&original));
    let sent = request.admin.send(queue, job).await?;
    let path = job_path(&sent.queue, sent.source.as_deref().unwrap_or_default(), &sent.id);
    let done = if request.admin.checked_kinds().contains(&kind) { "sent" } else { "sent-unchecked" };
    Ok(Answer::Go(format!("{path}&done={done}")))
}
