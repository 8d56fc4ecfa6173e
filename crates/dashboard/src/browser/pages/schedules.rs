//! The page of schedules, in words and with their next times, and of leaders.

use askama::Template;
use croner::Cron;
use jobqueue_admin::{Action, LeaderOverview, ScheduleOverview};

use super::{Answer, Layout, PageError, part};
use crate::browser::app::AuthorizedRequest;
use crate::browser::fields::Fields;
use crate::browser::filters;
use crate::browser::text::line;

#[derive(Template)]
#[template(path = "schedules.html")]
struct Schedules<'a> {
    layout: Layout,
    schedules: &'a [ScheduleOverview],
    leaders: &'a [LeaderOverview],
    /// The reason why the leaders cannot be read.
    unread_leaders: Option<&'a String>,
    may_trigger: bool,
    may_pause: bool,
    may_resume: bool,
}

pub(crate) async fn show(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let (look, admin) = (request.app.looks.latest().await?, &request.app.admin);
    let schedules = request.app.reads.get("", admin.schedules()).await?;
    let leaders = part(&request, "", admin.leaders()).await?;
    let access = request.admin.access();
    let page = Schedules {
        layout: Layout::new(&request, "schedules", "Schedules")
            .with_look(&look)
            .live(&request, &look)
            .noticed(fields.text("done")),
        schedules: &schedules,
        leaders: leaders.as_ref().map(|leaders| leaders.as_slice()).unwrap_or_default(),
        unread_leaders: leaders.as_ref().err(),
        may_trigger: access.allows(Action::TriggerSchedule),
        may_pause: access.allows(Action::PauseSchedule),
        may_resume: access.allows(Action::ResumeSchedule),
    };
    Ok(Answer::Page(page.render()?))
}

/// Returns the times of a schedule in words.
fn words(schedule: &ScheduleOverview) -> String {
    match (&schedule.cron, schedule.interval()) {
        (Some(cron), _) => {
            let zone = schedule.zone.as_deref().unwrap_or("UTC");
            let words = cron.parse::<Cron>().map(|cron| cron.describe());
            let words = words.unwrap_or_else(|_| "by a cron expression".to_owned());
            format!("{} ({})", line(&words), line(zone))
        }
        (None, Some(interval)) => format!("Every {interval}"),
        (None, None) => "Unknown: no leader of this version has run it yet.".to_owned(),
    }
}

pub(crate) async fn trigger(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let trigger = request.admin.trigger_schedule(fields.required("schedule")?).await?;
    Ok(redirect(trigger.new, if trigger.led { "triggered" } else { "triggered-without-leader" }))
}

pub(crate) async fn pause(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let new = request.admin.pause_schedule(fields.required("schedule")?).await?;
    Ok(redirect(new, "paused"))
}

pub(crate) async fn resume(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let new = request.admin.resume_schedule(fields.required("schedule")?).await?;
    Ok(redirect(new, "resumed"))
}

fn redirect(new: bool, done: &str) -> Answer {
    Answer::Go(format!("schedules?done={}", if new { done } else { "unchanged" }))
}
