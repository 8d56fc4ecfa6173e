//! The overview page: all queues, the throughput of the last hour, and the number of workers.

use askama::Template;
use jobqueue_admin::{Action, QueueOverview};

use super::{Answer, Layout, PageError};
use crate::browser::app::AuthorizedRequest;
use crate::browser::chart::Chart;
use crate::browser::fields::Fields;
use crate::browser::filters;
use crate::browser::looks::Look;
use crate::browser::text::{Sum, age};
use crate::browser::throughput::Throughput;
use crate::snapshot::QueueFigures;

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview<'a> {
    layout: Layout,
    sums: Sums,
    draining: usize,
    /// `None` if the records of workers cannot be read.
    slots: Option<u32>,
    chart: Chart,
    queues: Vec<Row<'a>>,
    may_create: bool,
}

struct Row<'a> {
    queue: &'a QueueOverview,
    /// `None` if the queue could not be read.
    figures: Option<QueueFigures>,
    is_unserved: bool,
    chart: Option<Chart>,
}

/// The sums over all queues of a storage.
#[derive(Debug)]
pub(super) struct Sums {
    pub(super) waiting: Sum,
    pub(super) running: Sum,
    pub(super) dead: Sum,
    pub(super) oldest: String,
    /// The number of queues with waiting jobs that no worker serves.
    pub(super) unserved: usize,
    /// `None` if the records of workers cannot be read.
    pub(super) workers: Option<usize>,
}

impl Sums {
    pub(super) fn of(look: &Look) -> Self {
        let sum = |figure: fn(&QueueFigures) -> Option<u64>| {
            look.queues().iter().map(|queue| look.figures.queues.get(&queue.name).and_then(figure)).collect()
        };
        let open = look.queues().iter().filter(|queue| queue.paused != Some(true));
        Self {
            waiting: sum(|figures| Some(figures.waiting)),
            running: sum(|figures| figures.in_flight),
            dead: look.queues().iter().map(|queue| queue.dead_letters).collect(),
            oldest: oldest_of(open),
            unserved: look.queues().iter().filter(|queue| look.is_unserved(queue)).count(),
            workers: look.known_workers().map(|_| look.present().count()),
        }
    }
}

pub(crate) async fn show(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let look = request.app.looks.latest().await?;
    let mut queues = Vec::new();
    for queue in look.queues() {
        let minutes = request.app.looks.throughput(|throughput| throughput.of_queue(&queue.name));
        queues.push(Row {
            queue,
            figures: look.figures_of(queue),
            is_unserved: look.is_unserved(queue),
            chart: (!minutes.is_empty()).then(|| Chart::small(minutes)),
        });
    }
    let page = Overview {
        layout: Layout::new(&request, "overview", "Overview")
            .with_look(&look)
            .live(&request, &look)
            .noticed(fields.text("done")),
        sums: Sums::of(&look),
        draining: look.present().filter(|worker| worker.record.draining).count(),
        slots: look.known_workers().map(|_| look.present().map(|worker| worker.record.slots).sum()),
        chart: Chart::hour(request.app.looks.throughput(Throughput::of_all)),
        queues,
        may_create: request.admin.access().allows(Action::CreateQueue),
    };
    Ok(Answer::Page(page.render()?))
}

/// Returns the age of the oldest job of a queue, as a lower bound if older jobs may exist.
pub(super) fn oldest(queue: &QueueOverview) -> String {
    match queue.backing_off_age() {
        Some(oldest) => format!("{} (backs off)", age(oldest)),
        None => oldest_of(std::iter::once(queue)),
    }
}

/// Returns the age of the oldest job of several queues, as a lower bound if it is not known exactly.
fn oldest_of<'q>(queues: impl Iterator<Item = &'q QueueOverview> + Clone) -> String {
    let is_unknown = queues.clone().any(|queue| queue.age().is_none());
    let is_bound = is_unknown || queues.clone().any(|queue| !queue.oldest_is_exact());
    match (queues.filter_map(|queue| queue.oldest).max(), is_unknown) {
        (Some(oldest), _) if is_bound => format!("≥ {}", age(oldest)),
        (Some(oldest), _) => age(oldest),
        (None, false) => "-".to_owned(),
        (None, true) => "?".to_owned(),
    }
}
