//! `groups`: lists the jobs sent in order, and the job that each waits for.

use clap::Args;
use comfy_table::Table;
use jobqueue_admin::{GroupEntry, GroupOverview};

use crate::args::Global;
use crate::exit::Failure;
use crate::output::{say, say_left_out, table};
use crate::session::{Need, Session};
use crate::text::{cell, optional};

#[derive(Args)]
pub(crate) struct GroupsArguments {
    /// The name of the queue
    queue: String,
    /// The maximum number of keys to list
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: usize,
}

pub(crate) async fn run(global: &Global, arguments: GroupsArguments) -> Result<(), Failure> {
    let session = Session::open(global, Need::Read).await?;
    let mut found = session.admin.groups(&arguments.queue).await?;
    found.groups.truncate(arguments.limit);
    let what = if found.complete { "groups" } else { "groups among the messages that were looked at" };
    global.output.page(&found, &found.groups, what, || overview(&found.groups))?;
    say_left_out("groups have jobs", found.found, found.groups.len());
    if !found.complete {
        say("there may be more groups, and more jobs in these: not all messages of the queue were looked at");
    }
    Ok(())
}

fn overview(groups: &[GroupOverview]) -> Table {
    let mut rows = table(&["KEY", "#NUMBER", "JOB", "WAITS FOR", "STATE"]);
    for group in groups {
        let key = cell(group.key.as_deref().unwrap_or(&group.group));
        let mut before: Option<&GroupEntry> = None;
        for (number, entry) in group.entries.iter().enumerate() {
            rows.add_row([
                key.clone(),
                (number + 1).to_string(),
                cell(name(entry)),
                optional(before.map(name)),
                state(entry, before.is_none().then_some(group.is_first_known)).to_owned(),
            ]);
            if !entry.skipped {
                before = Some(entry);
            }
        }
    }
    rows
}

/// Returns the id of a job, or its hash if its message was not seen.
fn name(entry: &GroupEntry) -> &str {
    entry.id.as_deref().unwrap_or(&entry.job)
}

/// Returns the state of a job. `first` is set for the first shown job of a group: true if the job is
/// certainly the first of its group.
fn state(entry: &GroupEntry, first: Option<bool>) -> &'static str {
    entry.state().unwrap_or(match first {
        Some(true) => "is the first: runs, waits until it is due, or is the next to run",
        Some(false) => "may wait for a job that is not shown",
        None => "waits",
    })
}
