//! The overview page: all queues, the throughput of the last hour, and the number of workers.

use askama::Template;
use jobqueue_admin::{Action, OldestJob, QueueOverview, WorkerOverview};

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
    /// The number of workers whose records are late.
    late: usize,
    /// `None` if the number of workers is unknown.
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
    oldest: String,
    chart: Option<Chart>,
}

/// The sums over all queues of a storage.
#[derive(Debug)]
pub(super) struct Sums {
    pub(super) waiting: Sum,
    pub(super) running: Sum,
    pub(super) dead: Sum,
    /// The oldest job of the queues that are not paused.
    pub(super) oldest: OldestJob,
    /// The number of queues with jobs that have waited for others of their keys for long.
    pub(super) held_up: usize,
    /// The number of queues with waiting jobs that no worker serves.
    pub(super) unserved: usize,
    /// `None` if the records of workers cannot be read, or none is written any more.
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
            oldest: OldestJob::of(open, look.workers()),
            held_up: look.queues().iter().filter(|queue| queue.is_held_up_for_long()).count(),
            unserved: look.queues().iter().filter(|queue| look.is_unserved(queue)).count(),
            workers: look
                .known_workers()
                .filter(|_| look.silence().is_none())
                .map(|_| look.present().count()),
        }
    }

    pub(super) fn oldest_text(&self) -> String {
        age_text(self.oldest)
    }
}

pub(crate) async fn show(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let look = request.app.looks.latest().await?;
    request.app.count_journal();
    let mut queues = Vec::new();
    for queue in look.queues() {
        let hour = request.app.looks.throughput(|throughput| throughput.of_queue(&queue.name));
        queues.push(Row {
            queue,
            figures: look.figures_of(queue),
            is_unserved: look.is_unserved(queue),
            oldest: oldest(queue, look.workers()),
            chart: (!hour.is_empty() || hour.unknown > 0).then(|| Chart::small(hour)),
        });
    }
    let sums = Sums::of(&look);
    let page = Overview {
        layout: Layout::new(&request, "overview", "Overview")
            .with_look(&look)
            .live(&request, &look)
            .noticed(fields.text("done")),
        draining: look.present().filter(|worker| worker.record.draining).count(),
        late: look.present().filter(|worker| worker.is_late()).count(),
        slots: sums.workers.map(|_| look.present().map(|worker| worker.record.slots).sum()),
        sums,
        chart: Chart::hour(request.app.looks.throughput(Throughput::of_all)),
        queues,
        may_create: request.admin.access().allows(Action::CreateQueue),
    };
    Ok(Answer::Page(page.render()?))
}

pub(super) fn oldest(queue: &QueueOverview, workers: &[WorkerOverview]) -> String {
    age_text(queue.oldest_job_of(workers))
}

/// Returns the age of the oldest job, as a lower bound if older jobs may exist.
fn age_text(job: OldestJob) -> String {
    let bound = if job.is_exact { "" } else { "≥ " };
    let end = job.obstacle().map(|obstacle| format!(" ({obstacle})")).unwrap_or_default();
    match job.age {
        Some(time) => format!("{bound}{}{end}", age(time)),
        None if job.is_exact => "-".to_owned(),
        None => "?".to_owned(),
    }
}
