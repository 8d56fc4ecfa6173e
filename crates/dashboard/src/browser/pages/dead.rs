//! Dead letters: found by filter, and put back or deleted, one or all that match.

use askama::Template;
use jobqueue::admin::Action;

use super::rows::Message;
use super::selection::Selection;
use super::{Answer, Layout, PageError};
use crate::browser::app::AuthorizedRequest;
use crate::browser::fields::Fields;
use crate::browser::operations::{Order, Verb};
use crate::browser::text::{amount, line};

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
    letters: Vec<Message>,
    matching: u64,
    looked_at: u64,
    complete: bool,
    operations: Vec<Started>,
    may_inspect: bool,
    may_redrive: bool,
    has_text: bool,
}

/// An operation on the queue.
struct Started {
    id: String,
    verb: &'static str,
    operator: String,
    runs: bool,
}

pub(crate) async fn all(request: AuthorizedRequest, _: Fields) -> Result<Answer, PageError> {
    let look = request.app.poller.latest().await;
    let dead = look.queues().iter().filter(|queue| queue.dead_letters > 0);
    let page = DeadQueues {
        layout: Layout::new(&request, "dead", "Dead letters").with_look(&look).live(&request, &look, 0),
        queues: dead.map(|queue| (queue.name.clone(), amount(queue.dead_letters))).collect(),
    };
    Ok(Answer::Page(page.render()?))
}

pub(crate) async fn of_queue(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let queue = fields.required("queue")?;
    let selection = Selection::read(&fields, &request.app.redactor)?;
    let look = request.app.poller.latest().await;
    let filter = selection.filter();
    let question = format!("{queue}{}", selection.query());
    let found = request.app.reads.dead.get(&question, request.app.admin.dead_letters(queue, &filter)).await?;
    let operations = request.app.operations.of_queue(queue);
    let started = operations.iter().take(5).map(|operation| Started {
        id: operation.id.clone(),
        verb: operation.order.verb.name(),
        operator: line(&operation.operator),
        runs: operation.is_running(),
    });
    let access = request.admin.access();
    let page = Dead {
        layout: Layout::new(&request, "dead", format!("Dead letters of {queue}"))
            .with_look(&look)
            .live(&request, &look, 2)
            .noticed(fields.text("done")),
        queue: queue.to_owned(),
        letters: found.letters.iter().map(|job| Message::new(&request, job)).collect(),
        matching: found.matching,
        looked_at: found.looked_at,
        complete: found.complete,
        operations: started.collect(),
        may_inspect: access.allows(Action::Inspect),
        may_redrive: access.allows(Action::Redrive),
        has_text: !request.app.redactor.hides(),
        selection,
    };
    Ok(Answer::Page(page.render()?))
}

impl Verb {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Redrive => "Redrive",
            Self::Purge => "Purge",
            Self::Preview => "Preview",
        }
    }
}

pub(crate) async fn preview(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    start(&request, &fields, Verb::Preview)
}

pub(crate) async fn redrive(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    start(&request, &fields, Verb::Redrive)
}

/// Deletes dead letters, if the operator has typed the name of their queue.
pub(crate) async fn purge(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    if fields.text("confirm") != Some(fields.required("queue")?) {
        return Err(PageError::invalid("nothing was deleted: the typed name does not match the queue"));
    }
    start(&request, &fields, Verb::Purge)
}

fn start(request: &AuthorizedRequest, fields: &Fields, verb: Verb) -> Result<Answer, PageError> {
    let queue = fields.required("queue")?.to_owned();
    let selection = Selection::read(fields, &request.app.redactor)?;
    let per_second = fields.number::<u32>("rate")?.filter(|rate| *rate > 0);
    request.admin.require(verb.action(), &format!("dead letters of {queue}"))?;
    let order = Order { verb, queue, selection, per_second };
    let app = std::sync::Arc::downgrade(&request.app);
    let ended = move || {
        if let Some(app) = app.upgrade() {
            app.changed();
        }
    };
    let operation = request.app.operations.start(&request.admin, order, ended)?;
    Ok(Answer::Go(format!("operations/{}", operation.id)))
}
