//! `workers`: lists the running workers and their jobs.

use clap::Args;
use jobqueue_admin::{RunningJob, WorkerOverview, silence};

use crate::args::Global;
use crate::contexts::{self, Item};
use crate::exit::Failure;
use crate::output::{Output, say};
use crate::session::{Need, Session};
use crate::text::{age, cell, clean, things};

#[derive(Args)]
pub(crate) struct WorkersArguments {
    /// Also lists stale workers, whose records were not written for three intervals: they have died, or
    /// cannot reach the storage
    #[arg(long)]
    all: bool,
    /// Lists the running jobs, each with its progress, as of the last record of its worker: by default a
    /// worker writes one every 15 seconds
    #[arg(long)]
    jobs: bool,
}

pub(crate) async fn run(global: &Global, arguments: WorkersArguments) -> Result<(), Failure> {
    let opened = Session::open_all(global, Need::Read).await?;
    let workers = contexts::read(&opened, async |session| {
        let mut workers = session.admin.all_workers().await?;
        let silence = silence(&workers);
        if !arguments.all {
            let all = workers.len();
            workers.retain(|worker| !worker.stale);
            if workers.len() < all {
                let stale = things(all - workers.len(), "worker");
                let place = session.context.as_ref().map_or_else(String::new, |name| format!(" of `{name}`"));
                let command = session.command(&["workers", "--all"]);
                say(&format!("{stale}{place} stopped writing records; {command} lists them too"));
            }
        }
        if let Some(silence) = silence {
            say(&silence);
        }
        Ok(workers)
    });
    let workers = workers.await?;
    match global.output {
        Output::Table if arguments.jobs => {
            let printed = contexts::print(Output::Table, &workers, "workers", JOB_COLUMNS, running);
            let unnamed = |worker: &WorkerOverview| {
                worker.record.running_total.saturating_sub(worker.record.running.len() as u64)
            };
            let more: u64 = workers.iter().filter_map(Item::get).map(unnamed).sum();
            if more > 0 {
                say(&format!(
                    "and {} more, which the records of their workers do not name",
                    things(more as usize, "job")
                ));
            }
            printed
        }
        output => contexts::print(output, &workers, "workers", COLUMNS, |worker| vec![overview(worker)]),
    }
}

const COLUMNS: &[&str] = &[
    "WORKER", "HOST", "#PID", "QUEUES", "#RUNNING", "#SLOTS", "#DONE", "#RETRIED", "#DEAD", "SINCE", "AS OF",
    "STATE",
];

fn overview(worker: &WorkerOverview) -> Vec<String> {
    let record = &worker.record;
    let queues: Vec<&str> = record.queues.iter().map(|queue| queue.name.as_str()).collect();
    let sum = |number: fn(&jobqueue_admin::Counters) -> u64| record.counters.iter().map(number).sum::<u64>();
    vec![
        cell(&record.name),
        cell(&record.host),
        record.pid.to_string(),
        cell(&queues.join(",")),
        record.running_total.to_string(),
        record.slots.to_string(),
        sum(|counters| counters.completed).to_string(),
        sum(|counters| counters.retried).to_string(),
        sum(|counters| counters.dead_lettered).to_string(),
        cell(&record.started),
        worker.age_text(),
        state(worker),
    ]
}

fn state(worker: &WorkerOverview) -> String {
    let mut words = Vec::new();
    if worker.stale {
        words.push(format!("stale for {}", seconds(worker.age_seconds)));
    } else if worker.is_late() {
        words.push(format!("last seen {}", worker.age_text()));
    }
    if worker.record.draining {
        words.push("draining".to_owned());
    }
    for queue in worker.record.queues.iter().filter(|queue| queue.circuit_open) {
        words.push(format!("circuit of {} open", clean(&queue.name)));
    }
    words.join(", ")
}

const JOB_COLUMNS: &[&str] =
    &["WORKER", "HOST", "QUEUE", "ID", "KIND", "ATTEMPT", "RUNS FOR", "AS OF", "PROGRESS"];

fn running(worker: &WorkerOverview) -> Vec<Vec<String>> {
    let row = |job: &RunningJob| {
        let progress = job.progress.as_ref().map_or_else(
            || "-".to_owned(),
            |progress| {
                let total = if progress.total == 0 { "?".to_owned() } else { progress.total.to_string() };
                cell(&format!("{}/{total} {}", progress.done, progress.text))
            },
        );
        vec![
            cell(&worker.record.name),
            cell(&worker.record.host),
            cell(&job.queue),
            cell(&job.id),
            cell(&job.kind),
            format!("{}/{}", job.attempt, job.max_attempts),
            seconds(job.running_seconds + worker.age_seconds),
            worker.age_text(),
            if job.cancelling { format!("{progress} (cancelling)") } else { progress },
        ]
    };
    worker.record.running.iter().map(row).collect()
}

/// Formats a number of seconds as a duration. The number may come from an untrusted message.
fn seconds(number: f64) -> String {
    std::time::Duration::try_from_secs_f64(number).map_or_else(|_| "-".to_owned(), age)
}
