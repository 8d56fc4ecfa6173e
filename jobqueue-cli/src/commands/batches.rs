//! `batches`: all of them, or one with the children that hold it up.

use clap::Args;
use jobqueue::admin::{BatchDetail, BatchOverview};

use crate::args::Global;
use crate::exit::Failure;
use crate::output::{Output, fields, lines, say, table};
use crate::session::{Need, Session};
use crate::text::{cell, clean, optional, time};

#[derive(Args)]
pub(crate) struct Arguments {
    /// The id of a batch: shows it with the children that have not ended
    id: Option<String>,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    let session = Session::open(global, Need::Read).await?;
    if let Some(id) = arguments.id {
        let batch = session.admin.batch(&id).await?;
        return global.output.value(&batch, || detail(&batch));
    }
    let found = session.admin.batches().await?;
    match global.output {
        Output::Json => global.output.value(&found, String::new)?,
        _ => global.output.list(&found.batches, || overview(&found.batches))?,
    }
    if !found.complete {
        say("there are more batches than a list goes through");
    }
    Ok(())
}

fn overview(batches: &[BatchOverview]) -> comfy_table::Table {
    let mut rows = table(&["BATCH", "#DONE", "#FAILED", "STATE", "CHANGED"]);
    for batch in batches {
        rows.add_row([
            cell(&batch.id),
            batch.done.to_string(),
            batch.failed.to_string(),
            state(batch.finished, batch.sealed).to_owned(),
            batch.modified.map_or_else(|| "-".to_owned(), time),
        ]);
    }
    rows
}

fn state(finished: bool, sealed: bool) -> &'static str {
    match (finished, sealed) {
        (true, _) => "finished",
        (false, true) => "waits for its children",
        (false, false) => "waits for its sender",
    }
}

fn detail(batch: &BatchDetail) -> String {
    let mut text = fields(&[
        ("batch", clean(&batch.id)),
        ("state", state(batch.finished, batch.sealed).to_owned()),
        ("children", batch.children.to_string()),
        ("done", batch.done.to_string()),
        ("failed", batch.failed.to_string()),
        ("continuation", batch.continuation_queue.as_deref().map_or_else(|| "-".to_owned(), clean)),
    ]);
    if batch.open.is_empty() {
        return text;
    }
    let mut rows = table(&["#CHILD", "JOB", "PLACE", "QUEUE", "ERROR"]);
    for child in &batch.open {
        rows.add_row([
            child.index.to_string(),
            cell(&child.job),
            child.place.to_owned(),
            optional(child.queue.as_deref()),
            optional(child.error.as_deref()),
        ]);
    }
    text.push('\n');
    text.push_str(&lines(&rows));
    text.push_str(&hint(batch));
    text
}

/// Says what releases a batch that a dead child holds up.
fn hint(batch: &BatchDetail) -> String {
    let dead = batch.open.iter().find(|child| child.place == "dead");
    let hint = dead.and_then(|child| Some((child.queue.as_deref()?, &child.job)));
    hint.map_or_else(String::new, |(queue, job)| {
        let (queue, job) = (clean(queue), clean(job));
        format!(
            "\nA dead child holds the batch up until it is done: `jobqueue dead redrive {queue} --id {job}`\n"
        )
    })
}
