//! `queue`: one queue.

use clap::{Args, Subcommand};
use jobqueue::settings::QueueSettings;
use jobqueue_admin::QueueOverview;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{queues, settings};
use crate::args::Global;
use crate::confirm;
use crate::exit::Failure;
use crate::output::fields;
use crate::session::{Need, Session};
use crate::text::{age, clean};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Shows a queue with its settings
    Show(Name),
    /// Creates a queue, and the SQLite file if it is missing
    Create(Name),
    /// Pauses the queue: workers stop fetching within 30 seconds and finish their running jobs
    Pause(Name),
    /// Resumes the queue: workers fetch again within 30 seconds
    Resume(Name),
    /// Compares or changes the settings of a queue
    #[command(subcommand)]
    Settings(settings::Command),
}

#[derive(Args)]
pub(crate) struct Name {
    /// The name of the queue
    queue: String,
}

#[derive(Serialize)]
struct Changed<'a> {
    queue: &'a str,
    changed: bool,
}

pub(crate) async fn run(global: &Global, command: Command, stop: &CancellationToken) -> Result<(), Failure> {
    match command {
        Command::Show(Name { queue }) => {
            let session = Session::open(global, Need::Read).await?;
            let found = session.admin.queue(&queue).await?;
            global.output.value(&found, || show(&found))
        }
        Command::Create(Name { queue }) => {
            let session = ask(global, Need::Create, &format!("create the queue `{queue}`"), stop).await?;
            let changed = session.admin.create_queue(&queue).await?;
            tell(global, &queue, changed, "was created", "exists already")
        }
        Command::Pause(Name { queue }) => {
            let session = ask(global, Need::Change, &format!("pause the queue `{queue}`"), stop).await?;
            let changed = session.admin.pause(&queue).await?;
            tell(global, &queue, changed, "is paused; workers notice within 30 seconds", "was paused already")
        }
        Command::Resume(Name { queue }) => {
            let session = ask(global, Need::Change, &format!("resume the queue `{queue}`"), stop).await?;
            let changed = session.admin.resume(&queue).await?;
            tell(global, &queue, changed, "is resumed; workers notice within 30 seconds", "was not paused")
        }
        Command::Settings(command) => settings::run(global, command, stop).await,
    }
}

/// Opens the storage for a change, and asks first if it is a production context.
async fn ask(
    global: &Global,
    need: Need,
    change: &str,
    stop: &CancellationToken,
) -> Result<Session, Failure> {
    let session = Session::open(global, need).await?;
    confirm::production(&session, global.yes, change, stop).await?;
    Ok(session)
}

fn tell(global: &Global, queue: &str, changed: bool, done: &str, nothing: &str) -> Result<(), Failure> {
    let text = || format!("queue {} {}", clean(queue), if changed { done } else { nothing });
    global.output.value(&Changed { queue, changed }, text)
}

fn show(queue: &QueueOverview) -> String {
    let mut text = fields(&[
        ("queue", clean(&queue.name)),
        ("length", queues::known(queue.length)),
        ("visible", queues::visible(queue)),
        ("states", states(queue)),
        ("oldest", queue.oldest.map_or_else(|| "-".to_owned(), age)),
        ("dead letters", queues::known(queue.dead_letters)),
        ("paused", if queue.paused == Some(true) { "yes" } else { "no" }.to_owned()),
    ]);
    text.push_str("\nsettings\n");
    let is_set = |name: &str| queue.metadata.keys().any(|set| set.eq_ignore_ascii_case(name));
    for (name, value) in &queue.settings {
        let origin = if is_set(name) { "" } else { "  (default)" };
        text.push_str(&format!("  {} = {}{origin}\n", clean(name), clean(value)));
    }
    let types_decide = |name: &&&str| !queue.settings.is_empty() && !queue.settings.contains_key(**name);
    for name in QueueSettings::OF_TYPES.iter().filter(types_decide) {
        text.push_str(&format!("  {name} = by message type  (default)\n"));
    }
    if let Some(error) = &queue.error {
        text.push_str(&format!("warning: {}\n", clean(error)));
    }
    for warning in &queue.warnings {
        text.push_str(&format!("warning: {}\n", clean(warning)));
    }
    text
}

/// Returns the counts by state, or says that the storage cannot tell.
fn states(queue: &QueueOverview) -> String {
    queue.states.map_or_else(
        || "this storage cannot tell".to_owned(),
        |counts| {
            format!(
                "{} waiting, {} delayed, {} backing off, {} running",
                counts.waiting, counts.delayed, counts.backing_off, counts.running
            )
        },
    )
}
