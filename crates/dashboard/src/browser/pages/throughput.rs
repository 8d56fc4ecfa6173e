//! The page of the last 24 hours: the jobs that ended and the length of a queue, as the journal has them.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use jobqueue::Error;
use jobqueue_admin::{EndedJobs, JournalCounts};

use super::{Answer, Layout, PageError, or_reason};
use crate::browser::app::AuthorizedRequest;
use crate::browser::chart::Chart;
use crate::browser::fields::Fields;
use crate::browser::filters;
use crate::browser::text::{When, line};

const HOURS: usize = 24;
const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Template)]
#[template(path = "throughput.html")]
struct ThroughputPage {
    layout: Layout,
    /// `None` for the page of all queues.
    queue: Option<String>,
    /// `None` if the journal has no entry, or the reason why it cannot be read.
    day: Result<Option<Day>, String>,
}

struct Day {
    ended: Chart,
    depth: Chart,
    /// The hours, the newest first, each with its start.
    hours: Vec<(When, Option<EndedJobs>)>,
    is_complete: bool,
}

pub(crate) async fn show(request: AuthorizedRequest, fields: Fields) -> Result<Answer, PageError> {
    let look = request.app.looks.latest().await?;
    let queue = fields.text("queue").map(str::to_owned);
    let counts = or_reason(counts(&request).await)?;
    let title = match &queue {
        Some(queue) => format!("Last 24 hours of {}", line(queue)),
        None => "Last 24 hours".to_owned(),
    };
    let page = ThroughputPage {
        layout: Layout::new(&request, "", title).with_look(&look),
        day: counts.map(|counts| Day::of(&counts, queue.as_deref())),
        queue,
    };
    Ok(Answer::Page(page.render()?))
}

/// Counts the jobs of the last 24 hours. The page is not refreshed, because this may read a million entries.
pub(crate) async fn counts(request: &AuthorizedRequest) -> Result<Arc<JournalCounts>, Error> {
    request.app.reads.get("", request.app.admin.count_ended(HOURS, HOUR)).await
}

impl Day {
    /// Returns the hours of a queue, or of all queues together; `None` if the journal has no entry of them.
    fn of(counts: &JournalCounts, queue: Option<&str>) -> Option<Self> {
        let hours = match queue {
            Some(queue) => counts.queues.get(queue)?.clone(),
            None => counts.queues.values().cloned().reduce(|sum, queue| {
                sum.into_iter().zip(queue).map(|(sum, hour)| Some(together(sum?, hour?))).collect()
            })?,
        };
        let starts = (0_u32..).map(|hour| When::of(counts.from + hour * counts.interval));
        Some(Self {
            ended: Chart::day(&hours),
            depth: Chart::depth(&hours),
            is_complete: hours.iter().all(Option::is_some),
            hours: starts.zip(hours).collect::<Vec<_>>().into_iter().rev().collect(),
        })
    }
}

fn together(mut sum: EndedJobs, hour: EndedJobs) -> EndedJobs {
    sum.completed += hour.completed;
    sum.dead_lettered += hour.dead_lettered;
    sum.cancelled += hour.cancelled;
    sum.depth += hour.depth;
    sum
}
