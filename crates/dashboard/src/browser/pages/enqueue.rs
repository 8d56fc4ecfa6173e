//! Sending a job by hand.

use askama::Template;
use jobqueue::SendOptions;
use jobqueue_admin::{Action, RawSend};

use super::rows::job_path;
use super::{Answer, Layout, PageError};
use crate::browser::app::AuthorizedRequest;
use crate::browser::fields::{Fields, Given};

#[derive(Template)]
#[template(path = "send.html")]
struct Send {
    layout: Layout,
    queue: String,
    queues: Vec<String>,
    kinds: Vec<String>,
    may_send: bool,
}

pub(crate) async fn show(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let look = request.app.poller.latest().await?;
    let records = look.present().map(|worker| &worker.record);
    let mut kinds: Vec<String> =
        records.flat_map(|record| &record.queues).flat_map(|queue| queue.kinds.clone()).collect();
    kinds.sort();
    kinds.dedup();
    let page = Send {
        layout: Layout::new(&request, "send", "Send a job").with_look(&look),
        queue: fields.text("queue").unwrap_or_default().to_owned(),
        queues: look.queues().iter().map(|queue| queue.name.clone()).collect(),
        kinds,
        may_send: request.admin.access().allows(Action::Send),
    };
    Ok(Answer::Page(page.render()?))
}

pub(crate) async fn send(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let queue = fields.text("queue").ok_or_else(|| PageError::invalid("the queue is missing"))?;
    let kind = fields.text("kind").ok_or_else(|| PageError::invalid("the kind is missing"))?;
    let job = RawSend::json(kind, fields.text("payload").unwrap_or("{}"))?
        .given(fields.number::<u32>("version")?, RawSend::version)
        .given(fields.text("id"), RawSend::id)
        .given(fields.text("key"), RawSend::key)
        .given(fields.duration("delay")?, |job, delay| job.with(SendOptions::new().delay(delay)));
    let sent = request.admin.send(queue, job).await?;
    let path = job_path(&sent.queue, sent.source.as_deref().unwrap_or_default(), &sent.id);
    Ok(Answer::Go(format!("{path}&done=sent")))
}
