//! `batches`: lists all batches, or shows one with the children that block it.

use clap::Args;
use jobqueue_admin::{BatchDetail, BatchList, JobPlace, JobReference, OpenChild, ParentBatch};

use crate::args::{Given, Global};
use crate::exit::Failure;
use crate::output::{fields, lines, say, table};
use crate::session::{Need, Session};
use crate::text::{cell, clean, last, optional, time};

#[derive(Args)]
pub(crate) struct BatchesArguments {
    /// The id of a batch: shows it with the children that have not ended
    id: Option<String>,
}

pub(crate) async fn run(global: &Global, arguments: BatchesArguments) -> Result<(), Failure> {
    let session = Session::open(global, Need::Read).await?;
    if let Some(id) = arguments.id {
        let batch = session.admin.batch(&id).await?;
        if !batch.unread.is_empty() {
            say(&format!("children may be in queues that cannot be read: {}", batch.unread.join(", ")));
        }
        return global.output.value(&batch, || detail(&session, &batch));
    }
    let found = session.admin.batches().await?;
    let what = if found.complete { "batches" } else { "batches among the listed blobs" };
    global.output.page(&found, &found.batches, what, || overview(&found))?;
    if !found.complete {
        say("batches with later ids are left out, because at most 200,000 blobs of batches are listed; \
             `batches ID` shows any batch");
    }
    Ok(())
}

fn overview(found: &BatchList) -> comfy_table::Table {
    let mut rows = table(&["BATCH", "CHILD", "#CHILDREN", "#DONE", "#FAILED", "#DEAD", "STATE", "CHANGED"]);
    for (branch, batch) in found.tree() {
        rows.add_row([
            branch + &cell(&batch.id),
            batch.parent.as_ref().map_or_else(|| "-".to_owned(), |parent| parent.child.to_string()),
            batch.children.map_or_else(|| "-".to_owned(), |children| children.to_string()),
            batch.done_text(),
            batch.failed_text(),
            batch.dead_text(),
            batch.state().to_owned(),
            batch.modified.map_or_else(|| "-".to_owned(), time),
        ]);
    }
    rows
}

fn part(parent: &ParentBatch) -> String {
    format!("child {} of the batch {}", parent.child, clean(&parent.batch))
}

fn place(child: &OpenChild) -> String {
    match &child.batch {
        Some(batch) if child.place == "fanned_out" => format!("in the batch {}", cell(batch)),
        _ => child.place.replace('_', " "),
    }
}

fn detail(session: &Session, batch: &BatchDetail) -> String {
    let mut text = fields(&[
        ("batch", clean(&batch.id)),
        ("state", batch.state().to_owned()),
        ("part of", batch.parent.as_ref().map_or_else(|| "-".to_owned(), part)),
        ("children", batch.children.to_string()),
        ("done", batch.done.to_string()),
        ("failed, and count as ended", batch.failed.to_string()),
        ("dead letters that block it", batch.dead_text()),
        ("continuation", batch.continuation_queue.as_deref().map_or_else(|| "-".to_owned(), clean)),
    ]);
    text.push_str(&continuation(session, batch).unwrap_or_default());
    if batch.open.is_empty() {
        return text;
    }
    let mut rows = table(&["#CHILD", "JOB", "PLACE", "QUEUE", "ERROR"]);
    for child in &batch.open {
        rows.add_row([
            child.index.to_string(),
            cell(&child.job),
            place(child),
            optional(child.queue.as_deref()),
            last(child.error.as_deref()),
        ]);
    }
    text.push('\n');
    text.push_str(&lines(&rows));
    if batch.more_open() > 0 {
        text.push_str(&format!("and {} more\n", batch.more_open()));
    }
    for (queue, hold) in &batch.held_up {
        text.push_str(&format!("\n{} {}\n", clean(queue), clean(&hold.to_string())));
    }
    text.push_str(&hint(session, batch).unwrap_or_default());
    text
}

/// Returns a line about the continuation of a batch whose children have all ended.
fn continuation(session: &Session, batch: &BatchDetail) -> Option<String> {
    let queue = batch.continuation_queue.as_ref().filter(|_| batch.waits_for_continuation())?;
    let found = batch.continuation.as_ref();
    let line = match found.filter(|found| found.is_gone || found.place != JobPlace::Unseen) {
        Some(found) if found.place == JobPlace::Dead => format!(
            "The continuation is a dead letter of {} ({}), and blocks the batch until it is redriven: {}",
            clean(queue),
            found.error.as_deref().map_or_else(|| "no error is kept".to_owned(), clean),
            session.letters_command(&["dead", "redrive"], &found.job)
        ),
        Some(found) if found.is_gone => format!(
            "The continuation is not in {}: it has just ended, was purged or has expired, or the child that ended \
             last has not sent it yet. If this stays so, the batch does not end",
            clean(queue)
        ),
        Some(found) => format!(
            "The continuation was sent to {}, and is no dead letter: see {}",
            clean(queue),
            session.job_command(&["explain"], &found.job)
        ),
        None => format!(
            "The continuation waits in {}, runs, or is a dead letter: see {}",
            clean(queue),
            session.command(&["dead", "list", queue])
        ),
    };
    Some(format!("\n{line}\n"))
}

/// Returns a hint for a batch that is blocked by a dead-lettered child, or by a nested batch.
fn hint(session: &Session, batch: &BatchDetail) -> Option<String> {
    let dead = batch.open.iter().find(|child| child.place == "dead" && child.queue.is_some());
    if let Some(OpenChild { job, source, queue: Some(queue), .. }) = dead {
        let child = JobReference::new(queue, job).given(source.as_ref(), JobReference::with_source);
        let command = session.letters_command(&["dead", "redrive"], &child);
        return Some(format!("\nA dead-lettered child blocks the batch until it is redriven: {command}\n"));
    }
    let inner = batch.open.iter().find_map(|child| child.batch.as_deref())?;
    let command = session.command(&["batches", inner]);
    Some(format!("\nA nested batch blocks it: {command}\n"))
}
