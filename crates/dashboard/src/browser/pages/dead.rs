//! The pages of dead letters, and the forms that redrive or purge one letter, the selected rows or all that
//! match.

use std::sync::Arc;

use askama::Template;
use jobqueue::Error;
use jobqueue_admin::{Action, DeadLetterPage, DeadLetterPlan, PlannedLetter};

use super::job::reference;
use super::operation::Started;
use super::rows::{ErrorRow, Message, exact_time};
use super::{Answer, Layout, PageError, operation};
use crate::browser::app::AuthorizedRequest;
use crate::browser::fields::{Fields, Given};
use crate::browser::filters;
use crate::browser::operation_spec::{OperationSpec, Verb};
use crate::browser::operations::OperationReport;
use crate::browser::selection::Selection;
use crate::browser::text::known;

/// The most letters that are examined at each refresh of a page.
const MAX_REFRESHED: u64 = 1_000;

#[derive(Template)]
#[template(path = "dead_queues.html")]
struct DeadQueues {
    layout: Layout,
    queues: Vec<(String, String)>,
}

#[derive(Template)]
#[template(path = "dead.html")]
struct Dead {
    layout: Layout,
    queue: String,
    selection: Selection,
    errors: Vec<ErrorRow>,
    /// The number of groups of errors that are not shown.
    more_errors: usize,
    /// The number of dead letters without a group.
    ungrouped: u64,
    letters: Vec<Message>,
    has_keys: bool,
    matching: u64,
    looked_at: u64,
    complete: bool,
    /// True if the storage shows the dead letters behind the first 32.
    shows_all: bool,
    /// The query of the next page.
    next: Option<String>,
    /// The query of the first page, unless this is it.
    first: Option<String>,
    /// The time after which no dead letter of the page died.
    before: Option<String>,
    operations: Vec<Started>,
    may_inspect: bool,
    may_redrive: bool,
    may_purge: bool,
    has_text: bool,
}

pub(crate) async fn all(request: AuthorizedRequest, _: Fields) -> Result<Answer, PageError> {
    let look = request.app.looks.latest().await?;
    let dead = look.queues().iter().filter(|queue| queue.dead_letters != Some(0));
    let page = DeadQueues {
        layout: Layout::new(&request, "dead", "Dead letters").with_look(&look).live(&request, &look),
        queues: dead.map(|queue| (queue.name.clone(), known(queue.dead_letters))).collect(),
    };
    Ok(Answer::Page(page.render()?))
}

pub(crate) async fn of_queue(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let queue = fields.required("queue")?;
    let selection = Selection::read(&fields, &request.app.redactor)?;
    let look = request.app.looks.latest().await?;
    let from = fields.text("from");
    let found = letters(&request, queue, &selection, from).await?;
    let access = request.admin.access();
    let mut layout = Layout::new(&request, "dead", format!("Dead letters of {queue}"))
        .with_look(&look)
        .noticed(fields.text("done"));
    // Where the storage shows every message, an id is searched among 10,000 of each state, as is a filter
    // that matches none of the first letters. A later page may begin at a letter that is gone.
    if fields.exact("id").is_none() && from.is_none() && found.looked_at <= MAX_REFRESHED {
        layout = layout.live(&request, &look);
    }
    let newest = found.letters.iter().filter_map(|job| job.dead.as_ref()?.inserted).max();
    let page = Dead {
        layout,
        queue: queue.to_owned(),
        errors: ErrorRow::all(&request, queue, &selection, &found.errors),
        more_errors: ErrorRow::unshown(&found.errors),
        ungrouped: found.ungrouped,
        letters: found.letters.iter().map(|job| Message::new(&request, job)).collect(),
        has_keys: found.letters.iter().any(|job| job.key.is_some()),
        matching: found.matching,
        looked_at: found.looked_at,
        complete: found.complete,
        shows_all: request.app.admin.shows_all_jobs(),
        next: found.next.as_deref().map(|next| selection.query_from(next)),
        first: from.map(|_| selection.query()),
        before: newest.and_then(exact_time),
        operations: Started::last(&request, queue, false),
        may_inspect: access.allows(Action::Inspect),
        may_redrive: access.allows(Action::Redrive),
        may_purge: access.allows(Action::Purge),
        has_text: !request.app.redactor.hides(),
        selection,
    };
    Ok(Answer::Page(page.render()?))
}

/// Returns a page of dead letters, which pages and documents share.
pub(crate) async fn letters(
    request: &AuthorizedRequest,
    queue: &str,
    selection: &Selection,
    from: Option<&str>,
) -> Result<Arc<DeadLetterPage>, Error> {
    let work = async { request.app.admin.dead_letters_from(queue, &selection.filter(), from).await };
    match from {
        None => request.app.reads.get(&format!("{queue}{}", selection.query()), work).await,
        // Not cached: each mark is read once, and a page may have eight megabytes of texts.
        Some(_) => request.app.reads.get_once(work).await.map(Arc::new),
    }
}

pub(crate) async fn preview(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let queue = fields.required("queue")?.to_owned();
    let selection = Selection::read(&fields, &request.app.redactor)?;
    operation::start(&request, OperationSpec::new(Verb::Preview(None), queue, selection))
}

/// Previews the selected rows.
pub(crate) async fn preview_selected(
    request: AuthorizedRequest,
    fields: Fields,
) -> Result<Answer, PageError> {
    let queue = fields.required("queue")?;
    let letters: Vec<_> = fields.rows()?.iter().map(letter).collect::<Result<_, _>>()?;
    let mut plan = DeadLetterPlan::of_jobs(queue, letters);
    // The storage may not name the messages: then the time keeps out later letters of the same jobs.
    plan.before = fields.time("before")?;
    let selection = Selection::of_rows(plan.letters.len());
    operation::start(&request, OperationSpec::new(Verb::Preview(Some(plan)), queue, selection))
}

fn letter(fields: &Fields) -> Result<PlannedLetter, PageError> {
    let letter = PlannedLetter::from(reference(fields)?);
    Ok(letter.given(fields.exact("message"), PlannedLetter::with_message))
}

/// Puts back the dead letters of a preview, or the dead letter of one job.
pub(crate) async fn redrive(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let per_second = fields.number::<u32>("rate")?;
    let limit = fields.number::<u64>("limit")?;
    if per_second == Some(0) || limit == Some(0) {
        return Err(PageError::invalid(
            "nothing was changed: a rate is at least 1 a second, and a limit at least 1; leave them empty for no bound",
        ));
    }
    let canary = fields.number::<u64>("canary")?;
    let (plan, selection) = plan(&request, &fields)?;
    let queue = plan.queue.clone();
    let spec = OperationSpec::new(Verb::Redrive(plan), queue, selection);
    operation::start(&request, OperationSpec { limit, per_second, canary, ..spec })
}

/// Deletes the dead letters of a preview, or the dead letter of one job, if the operator has typed the name
/// of the queue.
pub(crate) async fn purge(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let (plan, selection) = plan(&request, &fields)?;
    let queue = plan.queue.clone();
    if fields.text("confirm") != Some(&queue) {
        return Err(PageError::invalid("nothing was deleted: the typed name does not match the queue"));
    }
    operation::start(&request, OperationSpec::new(Verb::Purge(plan), queue, selection))
}

/// Returns the dead letters that a preview has found, with its filter. Without a preview, returns the dead
/// letter of the named job.
fn plan(request: &AuthorizedRequest, fields: &Fields) -> Result<(DeadLetterPlan, Selection), PageError> {
    let Some(preview) = fields.text("plan") else {
        let (letter, selection) = (letter(fields)?, Selection::read(fields, &request.app.redactor)?);
        let mut plan = DeadLetterPlan::of_jobs(letter.job.queue.clone(), [letter]);
        plan.before = fields.time("before")?;
        return Ok((plan, selection));
    };
    let operation = operation::find(request, preview)?;
    match (&operation.spec.verb, operation.progress().ended) {
        (Verb::Preview(_), Some(Ok(OperationReport::Letters(report)))) => {
            Ok((report.plan(), operation.spec.selection.clone()))
        }
        (Verb::Preview(_), _) => {
            Err(PageError::invalid("nothing was changed: the preview has found nothing yet"))
        }
        _ => Err(PageError::invalid("nothing was changed: this operation is not a preview of dead letters")),
    }
}
