//! Batches: their progress and their blocking children.

use askama::Template;
use jobqueue_admin::{BatchOverview, OpenChild, ParentBatch};

use super::rows::{job_path, shown};
use super::{Answer, Layout, PageError};
use crate::browser::app::AuthorizedRequest;
use crate::browser::fields::Fields;
use crate::browser::redact::Field;
use crate::browser::text::{When, encoded, line};

/// The most batches that the page shows.
const SHOWN: usize = 500;
/// The depth from which a batch is not indented further.
const DEEPEST: usize = 20;

#[derive(Template)]
#[template(path = "batches.html")]
struct Batches {
    layout: Layout,
    batches: Vec<Row>,
    more: usize,
    complete: bool,
}

/// The child of another batch that ends with a batch.
struct Parent {
    link: String,
    id: String,
    child: u64,
}

struct Row {
    /// Shows the depth in the tree.
    branch: String,
    link: String,
    id: String,
    parent: Option<Parent>,
    children: Option<u64>,
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
    parent: Option<Parent>,
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
    /// The batch that it waits for.
    inner: Option<Inner>,
    place: String,
    is_dead: bool,
    error: String,
}

/// A batch that a child has begun.
struct Inner {
    link: String,
    id: String,
    progress: Option<String>,
}

fn state(sealed: bool, finished: bool) -> &'static str {
    match (finished, sealed) {
        (true, _) => "finished",
        (_, true) => "running",
        _ => "being filled",
    }
}

pub(crate) async fn all(request: AuthorizedRequest, _: Fields) -> Result<Answer, PageError> {
    let look = request.app.poller.latest().await?;
    let found = request.app.reads.batches.get("", request.app.admin.batches()).await?;
    let tree = found.tree();
    // A listing has 5,000 blobs, of which each child that has ended has one.
    let ended: u64 = found.batches.iter().map(|batch| batch.done + batch.failed).sum();
    let page = Batches {
        layout: Layout::new(&request, "batches", "Batches").with_look(&look).live(
            &request,
            &look,
            1 + ended / 5_000,
        ),
        batches: tree.iter().take(SHOWN).map(|(depth, batch)| row(*depth, batch)).collect(),
        more: tree.len().saturating_sub(SHOWN),
        complete: found.complete,
    };
    Ok(Answer::Page(page.render()?))
}

fn row(depth: usize, batch: &BatchOverview) -> Row {
    let branch =
        if depth == 0 { String::new() } else { format!("{}└ ", "· ".repeat(depth.min(DEEPEST) - 1)) };
    Row {
        branch,
        link: encoded(&batch.id),
        id: line(&batch.id),
        parent: batch.parent.as_ref().map(parent),
        children: batch.children,
        done: batch.done,
        failed: batch.failed,
        state: state(batch.sealed, batch.finished),
        modified: batch.modified.map(When::of),
    }
}

fn parent(parent: &ParentBatch) -> Parent {
    Parent { link: encoded(&parent.batch), id: line(&parent.batch), child: parent.child }
}

pub(crate) async fn one(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let id = fields.required("id")?;
    let look = request.app.poller.latest().await?;
    let found = request.app.reads.batch.get(id, request.app.admin.batch(id)).await?;
    // How far the batches are that its children have begun.
    let all = match found.open.iter().any(|child| child.batch.is_some()) {
        true => Some(request.app.reads.batches.get("", request.app.admin.batches()).await?),
        false => None,
    };
    let inner = |id: &String| Inner {
        link: encoded(id),
        id: line(id),
        progress: all.as_ref().and_then(|all| all.batches.iter().find(|batch| batch.id == *id)).map(progress),
    };
    let page = Batch {
        layout: Layout::new(&request, "batches", format!("Batch {}", line(id))).with_look(&look).live(
            &request,
            &look,
            10 + look.workers().len() as u64,
        ),
        id: line(&found.id),
        parent: found.parent.as_ref().map(parent),
        children: found.children,
        done: found.done,
        failed: found.failed,
        open: found.children.saturating_sub(found.done + found.failed),
        state: state(found.sealed, found.finished),
        continuation: found.continuation_queue.as_deref().map(line),
        held_up: found
            .open
            .iter()
            .map(|open| child(&request, open, open.batch.as_ref().map(&inner)))
            .collect(),
    };
    Ok(Answer::Page(page.render()?))
}

/// Returns how far a batch is, in words.
fn progress(batch: &BatchOverview) -> String {
    let all =
        batch.children.map_or_else(|| "more to come".to_owned(), |children| format!("{children} children"));
    let failed = if batch.failed > 0 { format!(", {} failed", batch.failed) } else { String::new() };
    format!("{} done of {all}{failed}", batch.done)
}

fn child(request: &AuthorizedRequest, child: &OpenChild, inner: Option<Inner>) -> Child {
    let queue = child.queue.as_deref();
    let error = child.error.as_deref();
    Child {
        index: child.index,
        id: line(&child.job),
        path: queue.map(|queue| job_path(queue, "", &child.job)),
        queue: queue.map(line),
        inner,
        place: if child.place == "fanned_out" { "in a batch".to_owned() } else { line(child.place) },
        is_dead: child.place == "dead",
        error: error
            .map(|error| shown(request, queue.unwrap_or_default(), "", Field::Error, error))
            .unwrap_or_default(),
    }
}
