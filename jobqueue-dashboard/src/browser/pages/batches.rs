//! Batches: how far they are, and what holds them up.

use askama::Template;
use jobqueue::admin::OpenChild;

use super::rows::{job_path, shown};
use super::{Answer, Layout, PageError};
use crate::browser::app::Visit;
use crate::browser::fields::Fields;
use crate::browser::redact::Field;
use crate::browser::text::{When, encoded, line};

#[derive(Template)]
#[template(path = "batches.html")]
struct Batches {
    layout: Layout,
    batches: Vec<Row>,
    complete: bool,
}

struct Row {
    link: String,
    id: String,
    done: u64,
    failed: u64,
    state: &'static str,
    modified: Option<When>,
}

#[derive(Template)]
#[template(path = "batch.html")]
struct Batch {
    layout: Layout,
    id: String,
    children: u64,
    done: u64,
    failed: u64,
    open: u64,
    state: &'static str,
    continuation: Option<String>,
    held_up: Vec<Child>,
}

/// A child that has not ended.
struct Child {
    index: u64,
    id: String,
    path: Option<String>,
    queue: Option<String>,
    place: String,
    is_dead: bool,
    error: String,
}

fn state(sealed: bool, finished: bool) -> &'static str {
    match (finished, sealed) {
        (true, _) => "finished",
        (_, true) => "running",
        _ => "being filled",
    }
}

pub(crate) async fn all(visit: Visit, _: Fields) -> Result<Answer, PageError> {
    let look = visit.app.poller.latest().await;
    let found = visit.app.reads.batches.get("", visit.app.admin.batches()).await?;
    let row = |batch: &jobqueue::admin::BatchOverview| Row {
        link: encoded(&batch.id),
        id: line(&batch.id),
        done: batch.done,
        failed: batch.failed,
        state: state(batch.sealed, batch.finished),
        modified: batch.modified.map(When::of),
    };
    let page = Batches {
        layout: Layout::new(&visit, "batches", "Batches").with_look(&look).live(
            &visit,
            &look,
            1 + found.batches.len() as u64,
        ),
        batches: found.batches.iter().map(row).collect(),
        complete: found.complete,
    };
    Ok(Answer::Page(page.render()?))
}

pub(crate) async fn one(visit: Visit, fields: Fields) -> Result<Answer, PageError> {
    let id = fields.required("id")?;
    let look = visit.app.poller.latest().await;
    let found = visit.app.reads.batch.get(id, visit.app.admin.batch(id)).await?;
    let page = Batch {
        layout: Layout::new(&visit, "batches", format!("Batch {}", line(id))).with_look(&look).live(
            &visit,
            &look,
            10 + look.workers().len() as u64,
        ),
        id: line(&found.id),
        children: found.children,
        done: found.done,
        failed: found.failed,
        open: found.children.saturating_sub(found.done + found.failed),
        state: state(found.sealed, found.finished),
        continuation: found.continuation_queue.as_deref().map(line),
        held_up: found.open.iter().map(|open| child(&visit, open)).collect(),
    };
    Ok(Answer::Page(page.render()?))
}

fn child(visit: &Visit, child: &OpenChild) -> Child {
    let queue = child.queue.as_deref();
    let error = child.error.as_deref();
    Child {
        index: child.index,
        id: line(&child.job),
        path: queue.map(|queue| job_path(queue, "", &child.job)),
        queue: queue.map(line),
        place: line(child.place),
        is_dead: child.place == "dead",
        error: error
            .map(|error| shown(visit, (queue.unwrap_or_default(), ""), Field::Error, error))
            .unwrap_or_default(),
    }
}
