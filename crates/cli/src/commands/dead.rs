//! `dead`: lists, shows, counts and resends dead letters.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use jobqueue_admin::{DeadLetterFilter, DeadLetterPage, PlanOutcome, RawJob, RawPayload, RawSend};
use tokio_util::sync::CancellationToken;

use super::dead_changes;
use super::dead_text::{ERRORS, LETTERS, details, payload_text};
use super::send::{Input, note_unknown_kind};
use crate::args::{Given, Global};
use crate::confirm;
use crate::exit::{Failure, or_stop};
use crate::filter::Filter;
use crate::output::{Output, print, rows, say, say_left_out};
use crate::session::{Need, Session};
use crate::text::{clean, last};

/// The maximum number of dead letters with one id whose senders are compared.
const MAX_LETTERS_OF_ID: usize = 100;

#[derive(Subcommand)]
pub(crate) enum DeadCommand {
    /// Lists the dead letters of a queue
    List(ListArguments),
    /// Counts dead letters by their errors; they are invisible to others while it runs
    Stats(StatsArguments),
    /// Shows one dead letter, with its history
    Show(ShowArguments),
    /// Counts the outcomes of the jobs of a plan after its redrive; succeeds if all have ended
    Outcome(OutcomeArguments),
    /// Puts dead letters back into their queue, with their full number of attempts
    Redrive(dead_changes::BulkArguments),
    /// Sends a copy of a dead letter as a new job, with another payload or to another queue; the dead letter
    /// stays
    Resend(ResendArguments),
    /// Deletes dead letters with their payloads; this cannot be undone
    Purge(dead_changes::BulkArguments),
}

#[derive(Args)]
pub(crate) struct ListArguments {
    /// The name of the queue
    queue: String,
    #[command(flatten)]
    filter: Filter,
    /// Lists more than the first 32 dead letters by receiving them and putting them back
    #[arg(long)]
    deep: bool,
    /// The maximum number of dead letters to list; without --deep only the first 32 are looked at, or, with a
    /// filter and if the storage shows all, as SQLite and PostgreSQL, 10,000
    #[arg(long, value_name = "COUNT", default_value_t = 1_000)]
    limit: usize,
}

#[derive(Args)]
pub(crate) struct StatsArguments {
    /// The name of the queue
    queue: String,
    #[command(flatten)]
    filter: Filter,
}

#[derive(Args)]
pub(crate) struct OutcomeArguments {
    /// The plan that was redriven
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
    /// Accepts a plan that names another storage
    #[arg(long)]
    any_storage: bool,
    /// Looks beyond the first 32 dead letters; they are invisible to others while it runs
    #[arg(long)]
    deep: bool,
}

#[derive(Args)]
pub(crate) struct ShowArguments {
    #[command(flatten)]
    letter: LetterArguments,
    /// Prints only the payload, read from its blob if necessary
    #[arg(long)]
    payload: bool,
}

#[derive(Args)]
pub(crate) struct ResendArguments {
    #[command(flatten)]
    letter: LetterArguments,
    /// The file with another payload in JSON, which the worker checks against its type; `-` is standard input
    /// [default: the payload of the dead letter]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The queue of the new job [default: the queue of the dead letter]
    #[arg(long, value_name = "QUEUE")]
    to: Option<String>,
    /// The id of the new job, to repeat a send that may have succeeded [default: a new id]
    #[arg(long = "id", value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    new_id: Option<String>,
}

#[derive(Args)]
struct LetterArguments {
    /// The name of the queue
    queue: String,
    /// The id of the job
    id: String,
    /// The sender of the job, if several senders use the same id
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    source: Option<String>,
    /// Looks beyond the first 32 dead letters by receiving them and putting them back
    #[arg(long)]
    deep: bool,
}

pub(crate) async fn run(
    global: &Global,
    command: DeadCommand,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    match command {
        DeadCommand::List(arguments) => list(global, arguments, stop).await,
        DeadCommand::Stats(arguments) => stats(global, arguments, stop).await,
        DeadCommand::Outcome(arguments) => outcome(global, &arguments, stop).await,
        DeadCommand::Show(arguments) => show(global, arguments, stop).await,
        DeadCommand::Redrive(arguments) => dead_changes::run(global, arguments, false, stop).await,
        DeadCommand::Resend(arguments) => resend(global, arguments, stop).await,
        DeadCommand::Purge(arguments) => dead_changes::run(global, arguments, true, stop).await,
    }
}

async fn list(global: &Global, arguments: ListArguments, stop: &CancellationToken) -> Result<(), Failure> {
    let ListArguments { queue, filter, deep, limit } = arguments;
    let (_, mut page) = search(global, &queue, &filter.selection(), deep.then_some(limit), stop).await?;
    page.letters.truncate(limit);
    let printed = global.output.page(&page, &page.letters, "dead letters", || rows(LETTERS, &page.letters));
    say_left_out("dead letters match", page.matching, page.letters.len());
    require_end(&page, deep).and(printed)
}

async fn stats(global: &Global, arguments: StatsArguments, stop: &CancellationToken) -> Result<(), Failure> {
    let StatsArguments { queue, filter } = arguments;
    let (_, page) = search(global, &queue, &filter.selection(), Some(0), stop).await?;
    let printed = global.output.page(&page, &page.errors, "dead letters", || rows(ERRORS, &page.errors));
    if page.ungrouped > 0 {
        say(&format!("{} more dead letters have other errors", page.ungrouped));
    }
    if !page.errors.is_empty() && global.output == Output::Table {
        say("`dead list`, `dead redrive` and `dead purge` take one group by --error FINGERPRINT");
    }
    require_end(&page, true).and(printed)
}

async fn outcome(
    global: &Global,
    arguments: &OutcomeArguments,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let plan = dead_changes::read_letters(&arguments.plan, arguments.any_storage)?;
    let session = Session::open(global, if arguments.deep { Need::Inspect } else { Need::Read }).await?;
    let outcome = if arguments.deep {
        // The search holds dead letters, so it is not dropped: it ends by itself once `stop` fires.
        session.admin.stop_when(stop.clone()).search_outcome(&plan).await?
    } else {
        or_stop(async { Ok(session.admin.outcome(&plan).await?) }, stop, "interrupted").await?
    };
    let printed = global.output.value(&outcome, || {
        let PlanOutcome { left, open, ended, dead_again, unknown, .. } = &outcome;
        let mut text = format!(
            "{ended} ended, {open} wait or run, {} died again, {left} are still dead letters, {unknown} unknown\n",
            dead_again.len()
        );
        for died in dead_again.iter().take(dead_changes::MAX_NAMED) {
            let error = last(died.error.as_deref());
            text.push_str(&format!("  died again: {}: {error}\n", clean(&died.job.id)));
        }
        text
    });
    if outcome.unknown > 0 && outcome.more_jobs {
        say("looked at the first 100,000 jobs of each state only: the unknown jobs may be behind these");
    }
    if outcome.unknown > 0 && outcome.more_letters && !arguments.deep {
        let looked_at = if session.admin.shows_running_jobs() { "100,000 of each state" } else { "32" };
        say(&format!(
            "looked at the first {looked_at} of the dead letters only; add --deep for all dead letters"
        ));
    }
    let others = outcome.left + outcome.open + outcome.unknown + outcome.dead_again.len() as u64;
    match others {
        0 => printed,
        _ if stop.is_cancelled() => Err(Failure::Interrupted("interrupted".to_owned())),
        1 => Err(Failure::Failed("1 job has not ended, or its state is unknown".to_owned())),
        others => Err(Failure::Failed(format!("{others} jobs have not ended, or their state is unknown"))),
    }
}

/// Looks at the first dead letters or, if `deep` is set, at all of them, and returns at most so many.
async fn search(
    global: &Global,
    queue: &str,
    filter: &DeadLetterFilter,
    deep: Option<usize>,
    stop: &CancellationToken,
) -> Result<(Session, DeadLetterPage), Failure> {
    let need = if deep.is_some() { Need::Inspect } else { Need::Read };
    let session = Session::open(global, need).await?;
    let page = match deep {
        // The search holds dead letters, so it is not dropped: it ends by itself once `stop` fires.
        Some(limit) => {
            let page =
                session.admin.stop_when(stop.clone()).search_dead_letters(queue, filter, limit).await?;
            if stop.is_cancelled() && page.stopped.is_some() {
                let looked_at = page.looked_at;
                let text = format!(
                    "interrupted after {looked_at} dead letters; all are back, or will be in 10 minutes"
                );
                return Err(Failure::Interrupted(text));
            }
            page
        }
        None => {
            let look = async { Ok(session.admin.dead_letters(queue, filter).await?) };
            or_stop(look, stop, "interrupted").await?
        }
    };
    Ok((session, page))
}

async fn show(global: &Global, arguments: ShowArguments, stop: &CancellationToken) -> Result<(), Failure> {
    let ShowArguments { letter, payload } = arguments;
    let (session, letter) = find_letter(global, &letter, stop).await?;
    if payload {
        let payload = session.admin.payload(&letter).await?;
        return global.output.value(&payload, || payload_text(&payload));
    }
    if global.output != Output::Table {
        return global.output.value(&letter, String::new);
    }
    print(&details(&letter))
}

async fn resend(
    global: &Global,
    arguments: ResendArguments,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let ResendArguments { letter, file, to, new_id } = arguments;
    let to = to.unwrap_or_else(|| letter.queue.clone());
    let session = confirm::change(global, Need::Change, &format!("send to the queue `{to}`"), stop).await?;
    let new_payload = match file {
        Some(path) => {
            let json = Input::open(&path, false, stop).await?.next(stop).await?;
            let json = serde_json::from_slice(&json);
            Some(json.map_err(|error| Failure::Usage(format!("the payload is not JSON: {error}")))?)
        }
        None => None,
    };
    let (_, letter) = find_letter(global, &letter, stop).await?;
    let purge = session.letters_command(&["dead", "purge"], &letter.reference());
    let payload = match new_payload {
        Some(json) => RawPayload::Json(json),
        None => {
            or_stop(async { Ok(session.admin.payload(&letter).await?) }, stop, "nothing was sent").await?
        }
    };
    let copy = RawSend::copy_of(&letter, payload)?.given(new_id.as_deref(), RawSend::id);
    if stop.is_cancelled() {
        return Err(Failure::Interrupted("nothing was sent".to_owned()));
    }
    crate::last_line::set("the copy may have been sent");
    let sent = session.admin.send(&to, copy).await?;
    global.output.change(&sent, || {
        format!(
            "sent {} to {}; the dead letter stays, and a redrive would send it too: {purge} deletes it",
            clean(&sent.id),
            clean(&sent.queue)
        )
    })?;
    note_unknown_kind(&session, &to, &letter.kind).await;
    Ok(())
}

/// Returns the dead letter that the arguments name.
async fn find_letter(
    global: &Global,
    arguments: &LetterArguments,
    stop: &CancellationToken,
) -> Result<(Session, RawJob), Failure> {
    let LetterArguments { queue, id, source, deep } = arguments;
    let filter = DeadLetterFilter::new().ids([id.as_str()]).given(source.as_ref(), DeadLetterFilter::source);
    let (session, mut page) = search(global, queue, &filter, deep.then_some(MAX_LETTERS_OF_ID), stop).await?;
    if page.letters.is_empty() {
        let text = format!("none of {} dead letters of `{queue}` has the id `{id}`", page.looked_at);
        return Err(if page.complete {
            Failure::NothingMatched(text)
        } else {
            Failure::Failed(text + &why_incomplete(&page, *deep))
        });
    }
    let sources: BTreeSet<_> = page.letters.iter().map(|letter| letter.source.as_str()).collect();
    if sources.len() > 1 {
        let sources = jobqueue_admin::senders_text(sources);
        return Err(Failure::Usage(format!(
            "several senders use the id `{id}`; add one of them as --source: {sources}"
        )));
    }
    if source.is_none() && !page.complete {
        let why = why_incomplete(&page, *deep);
        say(&format!("only the senders of {} dead letters were compared{why}", page.looked_at));
    }
    if page.letters.len() > 1 {
        say(&format!(
            "the job has {} dead letters, of which this is one; `dead list` lists all",
            page.letters.len()
        ));
    }
    Ok((session, page.letters.swap_remove(0)))
}

/// Prints a message if not all dead letters were looked at. Fails if the search ended early.
fn require_end(page: &DeadLetterPage, deep: bool) -> Result<(), Failure> {
    let text = format!("looked at {} dead letters only{}", page.looked_at, why_incomplete(page, deep));
    if page.stopped.is_some() {
        return Err(Failure::Failed(text));
    }
    if !page.complete {
        say(&text);
    }
    Ok(())
}

/// Returns why not all dead letters were looked at, as the end of a sentence.
fn why_incomplete(page: &DeadLetterPage, deep: bool) -> String {
    match (&page.stopped, deep) {
        (Some(why), _) => format!("; {why}"),
        (None, true) => {
            "; others hold the rest for up to 10 minutes, or it arrived during the search".to_owned()
        }
        (None, false) => "; add --deep for all".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_that_ended_early_fails_with_its_cause() {
        let mut page = DeadLetterPage::default();
        assert!(require_end(&page, true).is_ok(), "others hold some, or some arrived during the search");
        page.stopped = Some("a part of the queue did not answer".to_owned());
        let ended = require_end(&page, true);
        assert!(matches!(&ended, Err(Failure::Failed(why)) if why.contains("did not answer")), "{ended:?}");
    }
}
