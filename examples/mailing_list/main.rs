//! A mailing list: a schedule finds due mailings, each is fanned out to one job per recipient, and archived
//! when all mails are sent.
//!
//! ```text
//! schedule ──scan──► who is due? ──fan-out──► one mail a recipient ──► outbox/<mailing>/0001.eml …
//!  (one leader)                    (a batch)        │
//!                                                   └── all sent ──archive──► out of the way
//! mailing:  Pending ──────────────► Queuing ──► Processing ──────────────► Complete
//! ```
//!
//! Teaches a schedule with one leader among many processes, a fan-out that may be interrupted anywhere and
//! started again, effects that are safe to repeat, a join after the last job, retries by the framework, and a
//! clean stop. Kill it at any moment (`kill -9`) and start it again: each recipient gets exactly one mail.
//!
//! Mailings and subscribers are in a SQLite database of the application; the jobs may be on any storage.
//! Prints
//!
//! ```text
//! composed “News no. 1” for 180 of 200 subscribers, due now
//! composed “News no. 2” for 180 of 200 subscribers, due in 2 s
//! “News no. 1”: Queuing, 180 recipients
//! “News no. 1”: Processing, all are queued
//! “News no. 1”: Complete and archived, 180 sent, 0 failed; mails in target/mailing_list/outbox/…
//! “News no. 2”: Queuing, 180 recipients
//! “News no. 2”: Processing, all are queued
//! “News no. 2”: Complete and archived, 180 sent, 0 failed; mails in target/mailing_list/outbox/…
//! 2 mailings are complete; …
//! ```
//!
//! As a service: `--role serve` in as many processes as you like, `--role compose` in another. Try `--help`.

#![allow(clippy::print_stdout, reason = "a program for people to look at")]

mod compose;
mod database;
mod jobs;
mod letter;
mod messages;
mod outbox;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use jobqueue::schedule::Schedule;
use jobqueue::{Event, Outcome, QueueMessage, Storage, Worker, WorkerBuilder, shutdown_signal};
use jobqueue_examples::{Failure, Progress, end, open_storage, start};

use crate::database::Database;
use crate::messages::{Mail, Scan};
use crate::outbox::Outbox;

/// Sends newsletters to the subscribers of a list, as files in a folder.
#[derive(Debug, Parser)]
struct Options {
    /// The folder of the database of lists and of the outbox
    #[arg(long, default_value = "target/mailing_list")]
    folder: PathBuf,
    /// The number of mailings to compose, if none is under way
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    mailings: u32,
    /// The seconds between the due times of two mailings
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    apart: u64,
    /// The number of invented subscribers; one in ten has not confirmed and gets no mail
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    subscribers: u32,
    /// A file of addresses, one per line, instead of invented subscribers
    #[arg(long, conflicts_with = "subscribers")]
    addresses: Option<PathBuf>,
    /// The percentage of deliveries that fail at first, to show retries
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..=50))]
    faults: u8,
    /// The storage of the jobs [default: JOBQUEUE_STORAGE, or sqlite:target/mailing_list.db]
    #[arg(long)]
    storage: Option<String>,
    /// The role of this process
    #[arg(long, value_enum, default_value_t = Role::All)]
    role: Role,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Composes mailings, or continues those under way, and ends when all are complete
    All,
    /// Only composes; another process sends
    Compose,
    /// Sends due mailings until it receives a signal to stop; start as many as you like
    Serve,
}

#[tokio::main]
async fn main() -> ExitCode {
    end(run(start()).await)
}

async fn run(options: Options) -> Result<(), Failure> {
    // Mistakes in the input are found before anything is written.
    let subscribers = match options.role {
        Role::Serve => Vec::new(),
        Role::All | Role::Compose => compose::subscribers(&options)?,
    };
    let outbox = Outbox::open(&options.folder.join("outbox"), options.faults)?;
    let database = Database::open(options.folder.join("lists.db")).await?;
    let storage = match options.role {
        Role::Compose => return compose::compose(&database, &options, subscribers).await,
        Role::All | Role::Serve => open_storage(options.storage.as_deref(), "mailing_list").await?,
    };
    let worker = worker(&storage, &database, &outbox);
    match options.role {
        Role::All => {
            let under_way = database.unfinished().await?.len();
            if under_way == 0 {
                compose::compose(&database, &options, subscribers).await?;
            } else {
                println!("going on with {under_way} mailings");
            }
            // Scan at once: the process that led the schedule may have been killed a moment ago.
            storage.queue::<Scan>().await?.send(&Scan {}).await?;
            send_all(worker, &database, &outbox).await
        }
        Role::Serve | Role::Compose => {
            println!("serving until Ctrl-C");
            let report = worker.build()?.run_until(shutdown_signal()).await?;
            println!("stopped; {} jobs done, {} tried again", report.completed, report.retried);
            Ok(())
        }
    }
}

/// Returns the worker of a process. Of several processes, the leader of the schedule scans for due mailings.
fn worker(storage: &Storage, database: &Database, outbox: &Outbox) -> WorkerBuilder {
    Worker::builder(storage.clone())
        .state(database.clone())
        .state(outbox.clone())
        .concurrency(16)
        .schedule_by(Schedule::every(Duration::from_secs(1)).name("mailing-list"), || Scan {})
        .handle(jobs::scan)
        .handle(jobs::fan_out)
        .handle(jobs::send)
        .handle(jobs::archive)
}

/// Works until every mailing is complete, or until it receives a signal to stop.
async fn send_all(worker: WorkerBuilder, database: &Database, outbox: &Outbox) -> Result<(), Failure> {
    let mailings = database.unfinished().await?;
    let total = database.expected().await?.into();
    let (give_up, mut given_up) = tokio::sync::mpsc::unbounded_channel();
    let worker = worker.on_event(move |event| drop(given_up_fan_out(event).map(|why| give_up.send(why))));
    let ended = async {
        tokio::select! {
            ended = show_progress(database, outbox, &mailings, total) => ended.map(|()| true),
            Some(why) = given_up.recv() => Err(why.into()),
            () = shutdown_signal() => Ok(false),
        }
    };
    let (tell, told) = tokio::sync::oneshot::channel();
    let stop = async { drop(tell.send(ended.await)) };
    let report = worker.build()?.run_until(stop).await?;
    if !told.await?? {
        println!("stopped before the end; start again to go on");
        return Ok(());
    }
    println!(
        "{} mailings are complete; {} deliveries failed at first and were tried again",
        mailings.len(),
        report.retried
    );
    Ok(())
}

/// Returns the reason if a job other than a mail was given up. The archive counts mails that were given up;
/// without one of the other jobs its mailing would never end.
fn given_up_fan_out(event: &Event) -> Option<String> {
    let Event::Finished { job: Some(job), outcome: Outcome::DeadLettered(_), error, .. } = event else {
        return None;
    };
    let why = error.as_deref().unwrap_or("no reason");
    (*job.kind != *Mail::KIND).then(|| format!("the job `{}` was given up: {why}", job.kind))
}

/// Ends when no mailing is left.
async fn show_progress(
    database: &Database,
    outbox: &Outbox,
    mailings: &[uuid::Uuid],
    total: u64,
) -> Result<(), Failure> {
    let progress = Progress::new("mails", total);
    loop {
        progress.at(outbox.count(mailings)?.min(total));
        if database.unfinished().await?.is_empty() {
            progress.done();
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
