//! The pages of batches: their progress and their blocking children.

use askama::Template;
use jobqueue_admin::{BatchDetail, BatchOverview, JobPlace, OpenChild};

use super::jobs::may_preview;
use super::rows::{job_path, place, shown};
use super::{Answer, Layout, PageError, part};
use crate::browser::app::AuthorizedRequest;
use crate::browser::fields::Fields;
use crate::browser::filters;
use crate::browser::redact::Field;
use crate::browser::text::line;

/// The maximum number of batches on the page.
const MAX_SHOWN: usize = 500;
/// The seconds for which an open page is still refreshed if each refresh searches the continuation at length.
const LONG_SEARCH_SECONDS: u64 = 20;

#[derive(Template)]
#[template(path = "batches.html")]
struct Batches<'a> {
    layout: Layout,
    tree: Vec<(String, &'a BatchOverview)>,
    more: usize,
    complete: bool,
}

#[derive(Template)]
#[template(path = "batch.html")]
struct Batch<'a> {
    layout: Layout,
    batch: &'a BatchDetail,
    held_up: Vec<Child<'a>>,
    /// The continuation, if all children have ended and it was found.
    continuation: Option<Continuation>,
    /// True if the continuation is certainly in no queue.
    is_gone: bool,
    /// The seconds for which an open page is still refreshed, if that is expensive.
    again: Option<u64>,
    /// The queue of an open child; empty if none was found.
    queue: &'a str,
    may_act: bool,
}

struct Child<'a> {
    open: &'a OpenChild,
    /// The batch that the child has begun.
    inner: Option<&'a BatchOverview>,
    error: String,
}

struct Continuation {
    path: String,
    place: &'static str,
    is_dead: bool,
    error: String,
}

/// Returns the continuation of a batch, if it was found.
fn continuation(request: &AuthorizedRequest, batch: &BatchDetail) -> Option<Continuation> {
    let found =
        batch.continuation.as_ref().filter(|found| !found.is_gone && found.place != JobPlace::Unseen)?;
    let job = &found.job;
    let error = found.error.as_ref().map(|error| shown(request, &job.queue, "", Field::Error, error));
    Some(Continuation {
        path: job_path(&job.queue, job.source.as_deref().unwrap_or_default(), &job.id),
        place: place(found.place),
        is_dead: found.place == JobPlace::Dead,
        error: error.unwrap_or_default(),
    })
}

pub(crate) async fn all(request: AuthorizedRequest, _: Fields) -> Result<Answer, PageError> {
    let look = request.app.looks.latest().await?;
    let found = request.app.reads.get("", request.app.admin.batches()).await?;
    let mut tree = found.tree();
    let more = tree.len().saturating_sub(MAX_SHOWN);
    tree.truncate(MAX_SHOWN);
    let layout = Layout::new(&request, "batches", "Batches").with_look(&look).live(&request, &look);
    Ok(Answer::Page(Batches { layout, tree, more, complete: found.complete }.render()?))
}

pub(crate) async fn one(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let id = fields.required("id")?;
    let look = request.app.looks.latest().await?;
    let found = request.app.reads.get(id, request.app.admin.batch(id)).await?;
    // The progress of the batches that its children have begun. If this cannot be read, the page still names
    // these batches.
    let all = if found.open.iter().any(|child| child.batch.is_some()) {
        part(&request, "", request.app.admin.batches()).await?.ok()
    } else {
        None
    };
    let inner = |id: &String| all.as_ref()?.batches.iter().find(|batch| batch.id == *id);
    let mut held_up = Vec::new();
    for open in &found.open {
        let queue = open.queue.as_deref().unwrap_or_default();
        let error = open.error.as_ref().map(|error| shown(&request, queue, "", Field::Error, error));
        let inner = open.batch.as_ref().and_then(inner);
        held_up.push(Child { open, inner, error: error.unwrap_or_default() });
    }
    let layout = Layout::new(&request, "batches", format!("Batch {}", line(id)));
    let layout = layout.with_look(&look).live(&request, &look);
    let queue = found.open.iter().find_map(|child| child.queue.as_deref()).unwrap_or_default();
    let may_act = may_preview(&request);
    let continuation = continuation(&request, &found);
    let waits = found.continuation.as_ref();
    // A search that did not end in time has found none.
    let is_long = found.waits_for_continuation() && waits.is_none_or(|job| job.has_long_search);
    let page = Batch {
        layout,
        batch: &found,
        held_up,
        continuation,
        is_gone: waits.is_some_and(|job| job.is_gone),
        again: is_long.then_some(LONG_SEARCH_SECONDS),
        queue,
        may_act,
    };
    Ok(Answer::Page(page.render()?))
}
