//! The first page: all queues, the last hour, and how many workers there are.

use askama::Template;
use jobqueue::admin::{Action, QueueOverview};

use super::{Answer, Layout, PageError};
use crate::browser::app::AuthorizedRequest;
use crate::browser::chart::Chart;
use crate::browser::fields::Fields;
use crate::browser::poller::Look;
use crate::browser::text::{age, amount, line};

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    layout: Layout,
    waiting: String,
    running: String,
    dead: String,
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
    dead: u64,
    dead_text: String,
    chart: Option<Chart>,
}

pub(crate) async fn show(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let look = request.app.poller.latest().await;
    let sum = |of: fn(&QueueOverview) -> u64| look.queues().iter().map(of).sum::<u64>();
    let running: u64 = look.queues().iter().map(|queue| look.running(queue)).sum();
    let oldest = look.queues().iter().filter(|queue| !queue.paused).filter_map(|queue| queue.oldest).max();
    let page = Overview {
        layout: Layout::new(&request, "overview", "Overview")
            .with_look(&look)
            .live(&request, &look, 0)
            .noticed(fields.text("done")),
        waiting: amount(sum(|queue| queue.length).saturating_sub(running)),
        running: amount(running),
        dead: amount(sum(|queue| queue.dead_letters)),
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
        paused: queue.paused,
        circuit_open: listening.any(|listening| listening.name == queue.name && listening.circuit_open),
        warnings: queue.warnings.len(),
        error: queue.error.as_deref().map(line),
        length: amount(queue.length.saturating_sub(look.running(queue))),
        running: amount(look.running(queue)),
        oldest,
        dead: queue.dead_letters,
        dead_text: amount(queue.dead_letters),
        chart: (!minutes.is_empty()).then(|| Chart::small(&minutes)),
    }
}
