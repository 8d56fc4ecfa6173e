//! `explain QUEUE`: shows how fast the jobs of a queue end, and what holds them up.

use std::time::Duration;

use jobqueue_admin::{KeyBacklog, KeyCount, QueueExplanation, SlotHolder, SlotUse};

use crate::args::Global;
use crate::exit::Failure;
use crate::output::say;
use crate::session::Session;
use crate::text::{age, clean, things};

/// The most kinds of running jobs, and the most keys, that are printed as text.
const MAX_LINES: usize = 10;

pub(crate) async fn run(
    global: &Global,
    session: &Session,
    queue: &str,
    measure: Duration,
) -> Result<(), Failure> {
    if !measure.is_zero() {
        let measured = age(measure);
        say(&format!("measuring for {measured} at most how fast its jobs end; --measure 0s looks once"));
    }
    let found = session.admin.explain_queue(queue, measure).await?;
    global.output.value(&found, || text(session, &found))
}

fn text(session: &Session, found: &QueueExplanation) -> String {
    let mut text = format!("{}\n", clean(&found.summary));
    for reason in &found.reasons {
        let words: Vec<_> = reason.command.iter().map(String::as_str).collect();
        let command = session.command(&words);
        text.push_str(&format!("  {}: {}; next: {command}\n", clean(reason.code), clean(&reason.text)));
    }
    let ended = found.pace.ended_text().unwrap_or_else(|| "unknown".to_owned());
    text.push_str(&format!("  ended: {ended}\n  empty in: {}\n", found.empty_in));
    text.push_str(&slots(session, found.slots.as_ref()));
    if let Some(keys) = &found.keys {
        text.push_str(&backlog(session, &found.queue, keys));
    }
    if found.length != Some(0) {
        let peek = session.command(&["peek", &found.queue]);
        let explain = session.command(&["explain", &found.queue, "ID"]);
        text.push_str(&format!("  {peek} lists the next jobs, {explain} explains one\n"));
    }
    text
}

fn slots(session: &Session, slots: Option<&SlotUse>) -> String {
    let Some(found) = slots else {
        return "  slots: unknown\n".to_owned();
    };
    let SlotUse { slots, running, holders, .. } = found;
    let mut text = format!("  slots: {slots}, running jobs of the queue: {running}{}\n", found.as_of());
    let line = |holder: &SlotHolder| {
        let longest =
            Duration::try_from_secs_f64(holder.longest_seconds).map_or_else(|_| "-".to_owned(), age);
        let (queue, worker) = (clean(&holder.queue), clean(&holder.worker));
        let jobs = things(usize::try_from(holder.jobs).unwrap_or(usize::MAX), "job");
        format!("    {jobs} of {} in {queue} on {worker}, for up to {longest}\n", kind(&holder.kind))
    };
    text.extend(holders.iter().take(MAX_LINES).map(line));
    if holders.len() > MAX_LINES {
        text.push_str(&format!("    and {} more kinds and workers\n", holders.len() - MAX_LINES));
    }
    if !holders.is_empty() {
        text.push_str(&format!("    {} lists the jobs\n", session.command(&["workers", "--jobs"])));
    }
    text
}

/// Returns the kind of jobs; messages that are not events have none.
fn kind(kind: &str) -> String {
    if kind.is_empty() { "no kind".to_owned() } else { clean(kind) }
}

fn backlog(session: &Session, queue: &str, backlog: &KeyBacklog) -> String {
    let bound = if backlog.complete { "" } else { "at least " };
    let what = if backlog.without_key.is_some() { "keys" } else { "keys of jobs in order" };
    if backlog.keys.is_empty() {
        let text = if backlog.complete { "none" } else { "none among the jobs that were looked at" };
        return format!("  {what}: {text}\n");
    }
    let keyless = backlog.without_key.filter(|jobs| *jobs > 0);
    let keyless = keyless.map(|jobs| format!(", and {bound}{jobs} waiting without a key"));
    let keyless = keyless.unwrap_or_default();
    let mut text = format!("  {what}: {bound}{}{keyless}\n", backlog.distinct);
    for count in backlog.keys.iter().take(MAX_LINES) {
        text.push_str(&key(session, queue, count));
    }
    let more = backlog.distinct.saturating_sub(MAX_LINES as u64);
    if more > 0 {
        text.push_str(&format!("    and {bound}{more} more keys\n"));
    }
    text
}

fn key(session: &Session, queue: &str, count: &KeyCount) -> String {
    let jobs = things(usize::try_from(count.jobs).unwrap_or(usize::MAX), "job");
    let order = if count.in_order { ", one at a time" } else { "" };
    let next = match &count.key {
        Some(key) if count.group.is_none() => {
            session.command(&["peek", queue, "--state", "waiting", &format!("--key={key}")])
        }
        _ => session.command(&["groups", queue]),
    };
    let name = count.key.as_deref().or(count.group.as_deref()).unwrap_or_default();
    format!("    {}: {jobs}{order}; next: {next}\n", clean(name))
}
