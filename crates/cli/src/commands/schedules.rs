//! `schedules`: lists, pauses, resumes and triggers schedules.

use std::time::SystemTime;

use clap::Subcommand;
use jobqueue_admin::{ScheduleOverview, ScheduleTrigger};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::args::Global;
use crate::confirm;
use crate::exit::Failure;
use crate::output::{Column, rows, say};
use crate::session::{Need, Session};
use crate::text::{cell, clean, optional, time};

#[derive(Subcommand)]
pub(crate) enum SchedulesCommand {
    /// Lists the schedules with their next runs
    List,
    /// Pauses a schedule: within 30 seconds, its leader begins to skip due slots
    Pause {
        /// The name of the schedule
        name: String,
    },
    /// Resumes a paused schedule
    Resume {
        /// The name of the schedule
        name: String,
    },
    /// Sends a job of a schedule now, whatever its timetable: within 30 seconds, or once a worker leads the
    /// schedule; its slot is the time of the trigger
    Trigger {
        /// The name of the schedule
        name: String,
    },
}

impl SchedulesCommand {
    pub(super) fn may_change(&self) -> bool {
        !matches!(self, Self::List)
    }
}

pub(crate) async fn run(
    global: &Global,
    command: SchedulesCommand,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    match command {
        SchedulesCommand::List => {
            let session = Session::open(global, Need::Read).await?;
            let schedules = session.admin.schedules().await?;
            global.output.list(&schedules, "schedules", || rows(COLUMNS, &schedules))?;
            for schedule in &schedules {
                if let Some(problem) = &schedule.problem {
                    say(&format!("schedule {}: {}", clean(&schedule.name), clean(problem)));
                }
            }
            Ok(())
        }
        SchedulesCommand::Pause { name } => {
            let change = format!("pause the schedule `{name}`");
            let session = confirm::change(global, Need::Change, &change, stop).await?;
            let changed = session.admin.pause_schedule(&name).await?;
            global.output.changed("schedule", &name, changed, ["is paused", "was already paused"])
        }
        SchedulesCommand::Resume { name } => {
            let change = format!("resume the schedule `{name}`");
            let session = confirm::change(global, Need::Change, &change, stop).await?;
            let changed = session.admin.resume_schedule(&name).await?;
            global.output.changed("schedule", &name, changed, ["is resumed", "was not paused"])
        }
        SchedulesCommand::Trigger { name } => {
            let change = format!("trigger the schedule `{name}`");
            let session = confirm::change(global, Need::Change, &change, stop).await?;
            let trigger = session.admin.trigger_schedule(&name).await?;
            let text = || format!("schedule {} {}", clean(&name), answer(trigger));
            let value = json!({ "schedule": name, "changed": trigger.new, "led": trigger.led });
            if trigger.new { global.output.change(&value, text) } else { global.output.value(&value, text) }
        }
    }
}

fn answer(trigger: ScheduleTrigger) -> &'static str {
    match (trigger.new, trigger.led) {
        (true, true) => "is triggered: its leader sends the job within 30 seconds",
        (true, false) => "is triggered, but no worker leads it now: the job is sent when a worker does",
        (false, true) => "was already triggered, but its leader has not sent the job yet",
        (false, false) => "was already triggered, but no worker leads it, so the job is not sent yet",
    }
}

const COLUMNS: &[Column<ScheduleOverview>] = &[
    ("SCHEDULE", |schedule| cell(&schedule.name)),
    ("QUEUE", |schedule| optional(schedule.queue.as_deref())),
    ("KIND", |schedule| optional(schedule.kind.as_deref())),
    ("TIMES", times),
    ("NEXT", |schedule| if schedule.led { at(schedule.next.first()) } else { "no leader".to_owned() }),
    ("DONE UP TO", |schedule| at(schedule.done.as_ref())),
    ("STATE", state),
];

fn at(at: Option<&SystemTime>) -> String {
    at.map_or_else(|| "-".to_owned(), |at| time(*at))
}

fn state(schedule: &ScheduleOverview) -> String {
    let words = [
        schedule.paused.then_some("paused"),
        schedule.problem.is_some().then_some("unreadable"),
        schedule.triggered.is_some().then_some("triggered"),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn times(schedule: &ScheduleOverview) -> String {
    match (&schedule.cron, schedule.interval()) {
        (Some(cron), _) => cell(&format!("{cron} {}", schedule.zone.as_deref().unwrap_or("UTC"))),
        (None, Some(interval)) => format!("every {interval}"),
        (None, None) => "-".to_owned(),
    }
}
