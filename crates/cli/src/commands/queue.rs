//! `queue`: shows, creates, pauses and resumes a queue.

use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use futures_util::join;
use jobqueue_admin::{PauseOptions, QueueOverview, WorkerOverview};
use tokio_util::sync::CancellationToken;

use super::{queues, settings};
use crate::args::{Given, Global};
use crate::confirm;
use crate::exit::Failure;
use crate::output::fields;
use crate::session::{Need, Session};
use crate::text::{clean, duration, moment};

#[derive(Subcommand)]
pub(crate) enum QueueCommand {
    /// Shows a queue with its settings
    Show(QueueArgument),
    /// Creates a queue, and the SQLite file or the tables if they are missing; migrates a storage of an older
    /// release
    Create(QueueArgument),
    /// Pauses the queue: workers stop fetching within 30 seconds and finish their running jobs
    Pause(PauseArguments),
    /// Resumes the queue: workers fetch again within 30 seconds
    Resume(QueueArgument),
    /// Compares or changes the settings of a queue
    #[command(subcommand)]
    Settings(settings::SettingsCommand),
}

impl QueueCommand {
    pub(super) fn may_change(&self) -> bool {
        !matches!(self, Self::Show(_) | Self::Settings(settings::SettingsCommand::Plan(_)))
    }
}

#[derive(Args)]
pub(crate) struct QueueArgument {
    /// The name of the queue
    queue: String,
}

#[derive(Args)]
pub(crate) struct PauseArguments {
    /// The name of the queue
    queue: String,
    /// The time at which the queue resumes by itself, such as '2026-11-22 15:00', in UTC unless it has an
    /// offset
    #[arg(long, value_name = "TIME", value_parser = moment, conflicts_with = "for")]
    until: Option<SystemTime>,
    /// The duration after which the queue resumes by itself, such as 2h
    #[arg(long, value_name = "TIME", value_parser = duration)]
    r#for: Option<Duration>,
    /// Replaces an existing pause, even of another operator
    #[arg(long)]
    replace: bool,
    /// The reason, for other operators
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

pub(crate) async fn run(
    global: &Global,
    command: QueueCommand,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    match command {
        QueueCommand::Show(QueueArgument { queue }) => {
            let session = Session::open(global, Need::Read).await?;
            let (found, workers) = join!(session.admin.queue(&queue), session.admin.workers());
            let (found, workers) = (found?, workers.ok());
            global.output.value(&found, || show(&found, workers.as_deref()))
        }
        QueueCommand::Create(QueueArgument { queue }) => {
            let session = Session::open(global, Need::Create).await?;
            let creation = if session.needs_creation { "create or migrate the storage" } else { "" };
            let and = if session.needs_creation { ", and " } else { "" };
            let change = format!("{creation}{and}create the queue `{queue}`");
            confirm::production(&session, global.yes, &change, stop).await?;
            let changed = session.admin.create_queue_in(&queue, creation, session.create()).await?;
            global.output.changed("queue", &queue, changed, ["was created", "already exists"])
        }
        QueueCommand::Pause(PauseArguments { queue, until, r#for: length, replace, note }) => {
            let options = PauseOptions::new()
                .replacing(replace)
                .given(until, PauseOptions::until)
                .given(length, PauseOptions::length)
                .given(note, PauseOptions::note);
            let change = format!("pause the queue `{queue}`");
            let session = confirm::change(global, Need::Change, &change, stop).await?;
            let changed = session.admin.pause_with(&queue, options).await?;
            let texts = ["is paused; workers notice within 30 seconds", "was already paused"];
            global.output.changed("queue", &queue, changed, texts)
        }
        QueueCommand::Resume(QueueArgument { queue }) => {
            let change = format!("resume the queue `{queue}`");
            let session = confirm::change(global, Need::Change, &change, stop).await?;
            let changed = session.admin.resume(&queue).await?;
            let resumed = match session.admin.is_served(&queue).await {
                Ok(false) => "is resumed; no worker with a record serves it",
                _ => "is resumed; workers notice within 30 seconds",
            };
            let texts = [resumed, "was not paused"];
            global.output.changed("queue", &queue, changed, texts)
        }
        QueueCommand::Settings(command) => settings::run(global, command, stop).await,
    }
}

/// Returns the text of a queue; `workers` is `None` if their records cannot be read.
fn show(queue: &QueueOverview, workers: Option<&[WorkerOverview]>) -> String {
    let counts = queue.job_counts(workers);
    let hidden = match queue.states {
        Some(states) => format!("{} delayed, {} backing off", states.delayed, states.backing_off),
        None => format!(
            "{} (delayed, backing off, or leased by a worker without a record)",
            queues::known(counts.hidden)
        ),
    };
    let open = |workers| queue.open_circuits(workers).unwrap_or_else(|| "none open".to_owned());
    let circuits = workers.map_or_else(|| "?".to_owned(), open);
    let paused = match (&queue.pause, queue.paused) {
        (Some(pause), _) => clean(&format!("yes{pause}")),
        (None, Some(_)) => "no".to_owned(),
        (None, None) => "?".to_owned(),
    };
    let mut text = fields(&[
        ("queue", clean(&queue.name)),
        ("length", queues::known(queue.length)),
        ("waiting", queues::waiting(queue, counts)),
        ("running", queues::known(counts.running)),
        ("hidden", hidden),
        ("oldest", queues::oldest(queue, workers)),
        ("dead letters", queues::known(queue.dead_letters)),
        ("paused", paused),
        ("circuits", circuits),
    ]);
    text.push_str("\nsettings\n");
    for setting in queue.effective_settings() {
        let origin = if setting.is_set { "" } else { "  (default)" };
        text.push_str(&format!("  {} = {}{origin}\n", clean(&setting.name), clean(&setting.value)));
    }
    if let Some(error) = &queue.error {
        text.push_str(&format!("warning: {}\n", clean(error)));
    }
    for warning in &queue.warnings {
        text.push_str(&format!("warning: {}\n", clean(warning)));
    }
    text
}
