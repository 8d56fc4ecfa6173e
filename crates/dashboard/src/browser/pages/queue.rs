//! The page of a queue: its waiting and running jobs, its settings, and its pause.

use askama::Template;
use jobqueue_admin::{
    Action, Admin, GroupEntry, GroupList, GroupOverview, PauseOptions, QueueExplanation, QueueOverview,
};

use super::holdup::{HoldUp, Keys, explanation};
use super::overview::oldest;
use super::rows::{Message, Run, shown};
use super::{Answer, Layout, PageError, or_reason, part};
use crate::browser::app::AuthorizedRequest;
use crate::browser::chart::Chart;
use crate::browser::fields::{Fields, Given};
use crate::browser::filters;
use crate::browser::looks::Look;
use crate::browser::redact::Field;
use crate::browser::text::line;
use crate::snapshot::QueueFigures;

#[derive(Template)]
#[template(path = "queue.html")]
struct QueuePage<'a> {
    layout: Layout,
    queue: &'a QueueOverview,
    /// `None` if the queue cannot be read.
    figures: Option<QueueFigures>,
    oldest: String,
    runs: Vec<Run>,
    /// The number of running jobs that are not shown.
    more_runs: usize,
    messages: Vec<Message>,
    /// The reason why the messages cannot be read.
    unpeeked: Option<String>,
    /// The groups, or the reason why they cannot be read; `None` unless the viewer has requested them.
    groups: Option<Result<Groups, String>>,
    /// The keys of the backlog, or the reason why they cannot be read; `None` without the groups.
    keys: Option<Result<Keys, String>>,
    /// `None` for a dead-letter queue.
    holdup: Option<HoldUp>,
    chart: Chart,
    may: AllowedActions,
}

struct AllowedActions {
    pause: bool,
    /// True if the operator may replace the current pause.
    repause: bool,
    resume: bool,
    settings: bool,
    send: bool,
}

/// The FIFO groups of the queue. `complete` is true if no group is missing.
struct Groups {
    shown: Vec<Group>,
    complete: bool,
}

/// A FIFO group. Its first entry is the job for which the others wait.
struct Group {
    key: String,
    is_first_known: bool,
    entries: Vec<String>,
    more: usize,
}

pub(crate) async fn show(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let name = fields.required("queue")?;
    let look = request.app.looks.latest().await?;
    request.app.count_journal();
    let overview = overview(&request, &look, name).await?;
    // If the messages cannot be read, the page still shows the pause and the figures.
    let admin = &request.app.admin;
    let peeked = part(&request, name, admin.peek(name)).await?;
    let next = peeked.as_ref().map(|jobs| jobs.as_slice()).map_err(String::as_str);
    let wants_groups = fields.text("groups").is_some();
    let (mut groups, mut keys) = (None, None);
    if wants_groups {
        // Without `PART_TIMEOUT`: the logs of thousands of keys take longer to read.
        groups = Some(or_reason(request.app.reads.get(name, admin.groups(name)).await)?);
        let found = or_reason(request.app.reads.get(name, admin.key_backlog(name)).await)?;
        keys = Some(found.map(|found| Keys::of(&request, name, &found)));
    }
    let hour = request.app.looks.throughput(|throughput| throughput.of_queue(name));
    let mut layout = Layout::new(&request, "", name).with_look(&look).noticed(fields.text("done"));
    // Groups are not refreshed, because their logs may be thousands of blobs.
    if !wants_groups {
        layout = layout.live(&request, &look);
    }
    let (runs, more_runs) = runs(&request, &look, name);
    let shown_groups = |found: &GroupList| Groups {
        shown: found.groups.iter().map(|found| group(&request, name, found)).collect(),
        complete: found.complete,
    };
    let page = QueuePage {
        layout,
        figures: look.figures_of(&overview),
        oldest: oldest(&overview, look.workers()),
        runs,
        more_runs,
        messages: next.unwrap_or_default().iter().map(|job| Message::new(&request, job)).collect(),
        unpeeked: next.err().map(str::to_owned),
        groups: groups
            .as_ref()
            .map(|groups| groups.as_ref().map(|found| shown_groups(found)).map_err(String::clone)),
        keys,
        holdup: HoldUp::of(&request, &look, &overview, next),
        chart: Chart::hour(hour),
        may: may(&request, overview.paused),
        queue: &overview,
    };
    Ok(Answer::Page(page.render()?))
}

async fn overview(request: &AuthorizedRequest, look: &Look, name: &str) -> Result<QueueOverview, PageError> {
    match look.queue(name) {
        Some(queue) => Ok(queue.clone()),
        // The queue may be newer than the last look, or a dead-letter queue, which looks count as a part of
        // its queue.
        None => {
            let read = request.app.reads.get(name, request.app.admin.queue(name)).await?;
            Ok(QueueOverview::clone(&read))
        }
    }
}

/// Explains a queue by the figures of its page, for programs.
pub(crate) async fn explain(request: &AuthorizedRequest, name: &str) -> Result<QueueExplanation, PageError> {
    Admin::check_home(name)?;
    let look = request.app.looks.latest().await?;
    let overview = overview(request, &look, name).await?;
    let next = part(request, name, request.app.admin.peek(name)).await?;
    let next = next.as_ref().map(|jobs| jobs.as_slice()).map_err(String::as_str);
    Ok(explanation(request, &look, &overview, next))
}

fn may(request: &AuthorizedRequest, paused: Option<bool>) -> AllowedActions {
    let access = request.admin.access();
    AllowedActions {
        pause: access.allows(Action::Pause) && paused != Some(true),
        repause: access.allows(Action::Pause) && paused == Some(true),
        resume: access.allows(Action::Resume) && paused != Some(false),
        settings: access.allows(Action::ChangeSettings),
        send: access.allows(Action::Send),
    }
}

/// Returns the first running jobs of the queue, and the number of the remaining running jobs.
fn runs(request: &AuthorizedRequest, look: &Look, queue: &str) -> (Vec<Run>, usize) {
    const MAX_RUNS: usize = 100;
    let jobs = look.present().flat_map(|worker| worker.record.running.iter().map(move |job| (worker, job)));
    let mut jobs = jobs.filter(|(_, job)| job.queue == queue);
    let shown = jobs.by_ref().take(MAX_RUNS).map(|(worker, job)| Run::new(request, worker, job)).collect();
    (shown, jobs.count())
}

fn group(request: &AuthorizedRequest, queue: &str, group: &GroupOverview) -> Group {
    const MAX_ENTRIES: usize = 10;
    let key = match &group.key {
        Some(key) => shown(request, queue, "", Field::Key, key),
        None => format!("(group {})", line(&group.group)),
    };
    let entry = |entry: &GroupEntry| {
        let state = entry.state().map(|state| format!(" ({state})"));
        line(entry.id.as_deref().unwrap_or(&entry.job)) + &state.unwrap_or_default()
    };
    Group {
        key,
        is_first_known: group.is_first_known,
        entries: group.entries.iter().take(MAX_ENTRIES).map(entry).collect(),
        more: group.entries.len().saturating_sub(MAX_ENTRIES),
    }
}

pub(crate) async fn create(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let name = fields.text("queue").ok_or_else(|| PageError::invalid("the name of the queue is missing"))?;
    let done = if request.admin.create_queue(name).await? { "created" } else { "exists" };
    Ok(redirect(name, done))
}

pub(crate) async fn pause(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let name = fields.required("queue")?;
    // Replaces only the pause that the page has shown.
    let replaces = fields.text("replace").map(|_| fields.shown("pause"));
    let (length, until) = (fields.duration("for")?, fields.time("until")?);
    if length.is_some() && until.is_some() {
        let text = "nothing was changed: a pause has a length or an end; leave one of the fields empty";
        return Err(PageError::invalid(text));
    }
    let options = PauseOptions::new()
        .given(length, PauseOptions::length)
        .given(until, PauseOptions::until)
        .given(fields.text("note"), PauseOptions::note)
        .given(replaces, PauseOptions::replacing_shown);
    let done = if request.admin.pause_with(name, options).await? { "paused" } else { "unchanged" };
    Ok(redirect(name, done))
}

pub(crate) async fn resume(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let name = fields.required("queue")?;
    // Ends only the pause that the page has shown, if it has shown a pause.
    let resumed = match fields.text("shown") {
        Some(_) => request.admin.resume_shown(name, fields.shown("pause")).await?,
        None => request.admin.resume(name).await?,
    };
    let is_unserved = resumed && matches!(request.admin.is_served(name).await, Ok(false));
    let done = match (resumed, is_unserved) {
        (true, true) => "resumed-unserved",
        (true, false) => "resumed",
        (false, _) => "unchanged",
    };
    Ok(redirect(name, done))
}

/// Changes a setting, or removes it if the value is empty.
pub(crate) async fn settings_change(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let name = fields.required("queue")?;
    let setting =
        fields.text("name").ok_or_else(|| PageError::invalid("the name of the setting is missing"))?;
    let plan = request.admin.plan_settings(name, [(setting, fields.text("value"))]).await?;
    if plan.is_empty() {
        return Ok(redirect(name, "unchanged"));
    }
    request.admin.apply_settings(&plan).await?;
    Ok(redirect(name, "settings"))
}

/// Redirects to the page of the queue. The storage has accepted the name, so it contains no character that
/// needs encoding.
fn redirect(queue: &str, done: &str) -> Answer {
    Answer::Go(format!("queues/{queue}?done={done}"))
}
