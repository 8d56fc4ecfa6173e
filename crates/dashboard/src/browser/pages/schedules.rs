//! Schedules in words, with their next times, and the leaderships.

use askama::Template;
use croner::Cron;
use jobqueue_admin::{Action, ScheduleOverview};

use super::{Answer, Layout, PageError};
use crate::browser::app::AuthorizedRequest;
use crate::browser::fields::Fields;
use crate::browser::text::{When, age, line};

#[derive(Template)]
#[template(path = "schedules.html")]
struct Schedules {
    layout: Layout,
    schedules: Vec<Schedule>,
    leaders: Vec<Leader>,
    may_trigger: bool,
    may_pause: bool,
    may_resume: bool,
}

struct Schedule {
    name: String,
    exact_name: String,
    words: String,
    cron: Option<String>,
    sends: String,
    next: Vec<When>,
    done: Option<When>,
    paused: bool,
    triggered: Option<When>,
}

struct Leader {
    name: String,
    held: bool,
    holder: Option<String>,
    since: When,
}

pub(crate) async fn show(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let (look, admin) = (request.app.poller.latest().await?, &request.app.admin);
    let schedules = request.app.reads.schedules.get("", admin.schedules()).await?;
    let leaders = request.app.reads.leaders.get("", admin.leaders()).await?;
    let access = request.admin.access();
    let page = Schedules {
        layout: Layout::new(&request, "schedules", "Schedules")
            .with_look(&look)
            .live(&request, &look, 2 + schedules.len() as u64)
            .noticed(fields.text("done")),
        schedules: schedules.iter().map(view).collect(),
        leaders: leaders
            .iter()
            .map(|leader| Leader {
                name: line(&leader.name),
                held: leader.held,
                holder: leader.holder.as_deref().map(line),
                since: When::of(leader.since),
            })
            .collect(),
        may_trigger: access.allows(Action::TriggerSchedule),
        may_pause: access.allows(Action::PauseSchedule),
        may_resume: access.allows(Action::ResumeSchedule),
    };
    Ok(Answer::Page(page.render()?))
}

fn view(schedule: &ScheduleOverview) -> Schedule {
    let sends = match (&schedule.kind, &schedule.queue) {
        (Some(kind), Some(queue)) => format!("{} to {}", line(kind), line(queue)),
        _ => "not known yet".to_owned(),
    };
    Schedule {
        name: line(&schedule.name),
        exact_name: schedule.name.clone(),
        words: words(schedule),
        cron: schedule.cron.as_deref().map(line),
        sends,
        next: schedule.next.iter().take(3).map(|at| When::of(*at)).collect(),
        done: schedule.done.map(When::of),
        paused: schedule.paused,
        triggered: schedule.triggered.map(When::of),
    }
}

/// Says in words when a schedule runs.
fn words(schedule: &ScheduleOverview) -> String {
    let every = schedule.every_ms.and_then(|every| u64::try_from(every).ok());
    match (&schedule.cron, every) {
        (Some(cron), _) => {
            let zone = schedule.zone.as_deref().unwrap_or("UTC");
            let words = cron.parse::<Cron>().map(|cron| cron.describe());
            let words = words.unwrap_or_else(|_| "by a cron expression".to_owned());
            format!("{} ({})", line(&words), line(zone))
        }
        (None, Some(every)) if every % 1000 == 0 => {
            format!("Every {}", age(std::time::Duration::from_millis(every)))
        }
        (None, Some(every)) => format!("Every {every} ms"),
        (None, None) => "Unknown: no leader of this version has run it yet.".to_owned(),
    }
}

pub(crate) async fn trigger(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let new = request.admin.trigger_schedule(fields.required("schedule")?).await?;
    Ok(to(new, "triggered"))
}

pub(crate) async fn pause(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let new = request.admin.pause_schedule(fields.required("schedule")?).await?;
    Ok(to(new, "paused"))
}

pub(crate) async fn resume(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let new = request.admin.resume_schedule(fields.required("schedule")?).await?;
    Ok(to(new, "resumed"))
}

fn to(new: bool, done: &str) -> Answer {
    Answer::Go(format!("schedules?done={}", if new { done } else { "unchanged" }))
}
