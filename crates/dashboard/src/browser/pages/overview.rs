//! The first page: all queues, the last hour, and how many workers there are.

use askama::Template;
use jobqueue_admin::{Action, QueueOverview};

use super::{Answer, Layout, PageError};
use crate::browser::app::AuthorizedRequest;
use crate::browser::chart::Chart;
use crate::browser::fields::Fields;
use crate::browser::poller::Look;
use crate::browser::text::{Sum, age, amount, known, line};

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    layout: Layout,
    waiting: String,
    running: String,
    dead: String,
    has_dead: bool,
    oldest: String,
    workers: usize,
    draining: usize,
    slots: u32,
    chart: Chart,
    queues: Vec<Row>,
    may_create: bool,
}

/// A queue in the table.
struct Row {
    name: String,
    paused: bool,
    circuit_open: bool,
    warnings: usize,
    error: Option<String>,
    length: String,
    running: String,
    oldest: String,
    has_dead: bool,
    dead_text: String,
    chart: Option<Chart>,
}

pub(crate) async fn show(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let look = request.app.poller.latest().await?;
    let dead: Sum = look.queues().iter().map(|queue| queue.dead_letters).collect();
    let waiting: Sum = look.queues().iter().map(|queue| look.waiting(queue)).collect();
    let running: u64 = look.queues().iter().map(|queue| look.running(queue)).sum();
    let oldest = look
        .queues()
        .iter()
        .filter(|queue| queue.paused != Some(true))
        .filter_map(|queue| queue.oldest)
        .max();
    let page = Overview {
        layout: Layout::new(&request, "overview", "Overview")
            .with_look(&look)
            .live(&request, &look, 0)
            .noticed(fields.text("done")),
        waiting: waiting.to_string(),
        running: amount(running),
        has_dead: dead.at_least > 0,
        dead: dead.to_string(),
        oldest: oldest.map_or_else(|| "-".to_owned(), age),
        workers: look.present().count(),
        draining: look.present().filter(|worker| worker.record.draining).count(),
        slots: look.present().map(|worker| worker.record.slots).sum(),
        chart: Chart::hour(&request.app.poller.hour()),
        queues: look.queues().iter().map(|queue| row(&request, &look, queue)).collect(),
        may_create: request.admin.access().allows(Action::CreateQueue),
    };
    Ok(Answer::Page(page.render()?))
}

fn row(request: &AuthorizedRequest, look: &Look, queue: &QueueOverview) -> Row {
    let minutes = request.app.poller.throughput(|throughput| throughput.of_queue(&queue.name));
    let mut listening = look.present().flat_map(|worker| &worker.record.queues);
    let oldest = match queue.oldest {
        // The oldest of those that a peek shows; there may be older ones.
        Some(oldest) if !queue.visible_is_exact => format!("≥ {}", age(oldest)),
        Some(oldest) => age(oldest),
        None => "-".to_owned(),
    };
    Row {
        name: queue.name.clone(),
        paused: queue.paused == Some(true),
        circuit_open: listening.any(|listening| listening.name == queue.name && listening.circuit_open),
        warnings: queue.warnings.len(),
        error: queue.error.as_deref().map(line),
        length: known(look.waiting(queue)),
        running: amount(look.running(queue)),
        oldest,
        has_dead: queue.dead_letters != Some(0),
        dead_text: known(queue.dead_letters),
        chart: (!minutes.is_empty()).then(|| Chart::small(&minutes)),
    }
}
