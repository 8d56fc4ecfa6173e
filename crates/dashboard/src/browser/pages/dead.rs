//! The pages of dead letters, and the forms that redrive or purge one letter or all that match.

use askama::Template;
use jobqueue_admin::{Action, DeadLetterPlan, PlannedLetter};

use super::job::reference;
use super::rows::{ErrorRow, Message};
use super::selection::Selection;
use super::{Answer, Layout, PageError, operation};
use crate::browser::app::AuthorizedRequest;
use crate::browser::fields::{Fields, Given};
use crate::browser::filters;
use crate::browser::operations::{OperationSpec, Verb};
use crate::browser::text::{known, line};

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
    operations: Vec<Started>,
    may_inspect: bool,
    may_redrive: bool,
    may_purge: bool,
    has_text: bool,
}

struct Started {
    id: String,
    verb: &'static str,
    operator: String,
    runs: bool,
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
    let filter = selection.filter();
    let key = format!("{queue}{}", selection.query());
    let found = request.app.reads.get(&key, request.app.admin.dead_letters(queue, &filter)).await?;
    let operations = request.app.operations.of_queue(queue);
    let started = operations.iter().take(5).map(|operation| Started {
        id: operation.id.clone(),
        verb: operation.spec.verb.name(),
        operator: line(&operation.operator),
        runs: operation.is_running(),
    });
    let access = request.admin.access();
    let mut layout = Layout::new(&request, "dead", format!("Dead letters of {queue}"))
        .with_look(&look)
        .noticed(fields.text("done"));
    // Where the storage shows every message, an id is searched among 10,000 of each state.
    if fields.exact("id").is_none() {
        layout = layout.live(&request, &look);
    }
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
        operations: started.collect(),
        may_inspect: access.allows(Action::Inspect),
        may_redrive: access.allows(Action::Redrive),
        may_purge: access.allows(Action::Purge),
        has_text: !request.app.redactor.hides(),
        selection,
    };
    Ok(Answer::Page(page.render()?))
}

pub(crate) async fn preview(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let queue = fields.required("queue")?.to_owned();
    let selection = Selection::read(&fields, &request.app.redactor)?;
    start(&request, OperationSpec { verb: Verb::Preview, queue, selection, per_second: None, canary: None })
}

/// Puts back the dead letters of a preview, or the dead letter of one job.
pub(crate) async fn redrive(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let per_second = fields.number::<u32>("rate")?;
    if per_second == Some(0) {
        return Err(PageError::invalid(
            "nothing was changed: a rate is at least 1 a second; leave it empty for no bound",
        ));
    }
    let canary = fields.number::<u64>("canary")?;
    let (plan, selection) = plan(&request, &fields)?;
    let queue = plan.queue.clone();
    start(&request, OperationSpec { verb: Verb::Redrive(plan), queue, selection, per_second, canary })
}

/// Deletes the dead letters of a preview, or the dead letter of one job, if the operator has typed the name
/// of the queue.
pub(crate) async fn purge(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let (plan, selection) = plan(&request, &fields)?;
    let queue = plan.queue.clone();
    if fields.text("confirm") != Some(&queue) {
        return Err(PageError::invalid("nothing was deleted: the typed name does not match the queue"));
    }
    start(
        &request,
        OperationSpec { verb: Verb::Purge(plan), queue, selection, per_second: None, canary: None },
    )
}

/// Returns the dead letters that a preview has found, with its filter. Without a preview, returns the dead
/// letter of the named job.
fn plan(request: &AuthorizedRequest, fields: &Fields) -> Result<(DeadLetterPlan, Selection), PageError> {
    let Some(preview) = fields.text("plan") else {
        let (job, selection) = (reference(fields)?, Selection::read(fields, &request.app.redactor)?);
        let queue = job.queue.clone();
        let letter = PlannedLetter::from(job).given(fields.exact("message"), PlannedLetter::with_message);
        let mut plan = DeadLetterPlan::of_jobs(queue, [letter]);
        plan.before = fields.time("before")?;
        return Ok((plan, selection));
    };
    let operation = operation::find(request, preview)?;
    match (&operation.spec.verb, operation.progress().ended) {
        (Verb::Preview, Some(Ok(report))) => Ok((report.plan(), operation.spec.selection.clone())),
        (Verb::Preview, _) => {
            Err(PageError::invalid("nothing was changed: the preview has found nothing yet"))
        }
        _ => Err(PageError::invalid("nothing was changed: this operation is not a preview")),
    }
}

fn start(request: &AuthorizedRequest, spec: OperationSpec) -> Result<Answer, PageError> {
    request.admin.require(spec.verb.action(), &format!("dead letters of {}", spec.queue))?;
    let app = std::sync::Arc::downgrade(&request.app);
    let ended = move || {
        if let Some(app) = app.upgrade() {
            app.changed();
        }
    };
    let operation = request.app.operations.start(&request.admin, spec, ended)?;
    Ok(Answer::Go(format!("operations/{}", operation.id)))
}
