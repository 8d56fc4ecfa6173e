//! `explain`: shows the state of a job, and why it does not run, or what holds up a queue.

use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use futures_util::{StreamExt, stream};
use jobqueue::{ErrorKind, QueueName};
use jobqueue_admin::{Explanation, JobPlace, JobReference};

use super::explain_queue;
use crate::args::{Given, Global};
use crate::exit::Failure;
use crate::output::say;
use crate::session::{Need, Session};
use crate::text::{clean, duration};

#[derive(Args)]
#[command(override_usage = "jobqueue explain [OPTIONS] <QUEUE>
       jobqueue explain [OPTIONS] [QUEUE] <ID>")]
pub(crate) struct ExplainArguments {
    /// The name of the queue; without an id, the queue is explained, and without a queue, the job is searched
    /// for in all queues
    #[arg(value_name = "QUEUE")]
    queue_or_id: Option<String>,
    /// The id of the job
    id: Option<String>,
    /// The sender, if several senders use the same id
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    source: Option<String>,
    /// The time between the two looks that measure how fast the jobs of a queue end; workers write their
    /// counts every 15 seconds by default, and 0s looks once
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "20s", conflicts_with = "id")]
    measure: Duration,
}

pub(crate) async fn run(global: &Global, arguments: ExplainArguments) -> Result<(), Failure> {
    let ExplainArguments { queue_or_id, id, source, measure } = arguments;
    let Some(queue_or_id) = queue_or_id else {
        return Err(Failure::Usage("the id of the job is missing, or the name of a queue".to_owned()));
    };
    let session = Session::open(global, Need::Read).await?;
    let of_queue =
        |queue: &str, id: &str| JobReference::new(queue, id).given(source.clone(), JobReference::with_source);
    let explanation = match &id {
        Some(id) => explain(&session, of_queue(&queue_or_id, id)).await?,
        None => {
            let names = session.admin.queue_names().await?;
            if source.is_none() && names.iter().any(|name| name.as_str() == queue_or_id) {
                return explain_queue::run(global, &session, &queue_or_id, measure).await;
            }
            let (dead, queues): (Vec<_>, Vec<_>) = names.iter().partition(|name| name.is_dead_letter());
            // The dead letters of a deleted queue are not searched. A failure names them.
            let is_of =
                |dead: &QueueName, queue: &QueueName| queue.dead_letter().is_ok_and(|own| own == *dead);
            let orphaned = dead.into_iter().filter(|dead| !queues.iter().any(|queue| is_of(dead, queue)));
            let orphaned = orphaned.map(|name| format!("`{name}`")).collect();
            let jobs = queues.iter().map(|name| of_queue(name.as_str(), &queue_or_id)).collect();
            explain_anywhere(&session, jobs, orphaned).await?
        }
    };
    let printed = global.output.value(&explanation, || text(&session, &explanation));
    if is_not_found(&explanation) {
        Err(Failure::NothingMatched("the job was not found".to_owned()))
    } else {
        printed
    }
}

fn is_not_found(explanation: &Explanation) -> bool {
    explanation.reasons.iter().any(|reason| reason.code == "not_found")
}

async fn explain(session: &Session, job: JobReference) -> Result<Explanation, Failure> {
    let job = match session.admin.identify(&job).await {
        Err(error) if error.kind() == ErrorKind::Storage => {
            say(&format!(
                "whether several senders use the id could not be checked, so this may be another sender's \
                 job: {error:?}"
            ));
            job
        }
        identified => identified?,
    };
    Ok(session.admin.explain(&job).await?)
}

/// The number of queues in a row that an outage makes unreadable, after which a search reads no more: each
/// attempt may take a minute.
const MAX_FAILURES: u32 = 3;
/// The number of queues that are searched at the same time.
const CONCURRENT_QUEUES: usize = 4;

/// Explains the only one of `jobs` that is found. `uncertain` names queues that are not searched, in quotes.
async fn explain_anywhere(
    session: &Session,
    jobs: Vec<JobReference>,
    mut uncertain: Vec<String>,
) -> Result<Explanation, Failure> {
    let mut found = Vec::new();
    let mut failed_in_a_row = 0;
    let mut queues = jobs.iter().map(|job| format!("`{}`", job.queue)).collect::<Vec<_>>().into_iter();
    let searches = jobs.into_iter().map(|job| async move {
        let searched = session.admin.explain(&job).await;
        (job, searched)
    });
    let mut searches = stream::iter(searches).buffered(CONCURRENT_QUEUES);
    while failed_in_a_row < MAX_FAILURES
        && let Some((job, searched)) = searches.next().await
    {
        let queue = queues.next().unwrap_or_default();
        match searched {
            // Compares the senders of the id, which only this queue needs.
            Ok(seen) if seen.place != JobPlace::Unseen || seen.ended.is_some() => {
                found.push(explain(session, job).await?);
            }
            Ok(explanation) if is_not_found(&explanation) => {}
            Ok(_) => uncertain.push(queue),
            Err(error) => {
                // A refusal of one queue says nothing about the others.
                failed_in_a_row = if error.is_retryable() { failed_in_a_row + 1 } else { 0 };
                uncertain.push(format!("{queue} ({error:?})"));
                continue;
            }
        }
        failed_in_a_row = 0;
    }
    uncertain.extend(queues);
    if found.len() > 1 {
        let names: Vec<_> = found.iter().map(|explanation| format!("`{}`", explanation.job.queue)).collect();
        return Err(Failure::Usage(format!(
            "the queues {} each have a job with this id: name one of the queues",
            names.join(", ")
        )));
    }
    let names = uncertain.join(", ");
    if let Some(found) = found.pop() {
        if !uncertain.is_empty() {
            say(&format!("not all messages of {names} were looked at: they may have a job with this id too"));
        }
        return Ok(found);
    }
    if uncertain.is_empty() {
        let text = "no queue has this name, and none has a job with this id: it has ended, or never existed; the journal shows \
                    an end up to 15 seconds later";
        return Err(Failure::NothingMatched(text.to_owned()));
    }
    Err(Failure::Failed(format!("no job with this id was found; not all messages of {names} were looked at")))
}

fn text(session: &Session, explanation: &Explanation) -> String {
    let mut text = format!("{}\n", clean(&explanation.summary));
    // The summary and the error already say that the job was not found.
    for reason in explanation.reasons.iter().filter(|reason| reason.code != "not_found") {
        text.push_str(&format!("  {}: {}\n", clean(reason.code), clean(&reason.text)));
    }
    if explanation.reasons.iter().any(|reason| reason.code == "behind_dead_letters") {
        let search = session.letters_command(&["dead", "list", "--deep"], &explanation.job);
        text.push_str(&format!("  {search} searches all dead letters\n"));
    }
    if let Some(run) = &explanation.run {
        let worker = explanation.worker_name.as_deref().unwrap_or("-");
        text.push_str(&format!(
            "  worker {}, attempt {} of {}\n",
            clean(worker),
            run.attempt,
            run.max_attempts
        ));
    }
    text.push_str(&sender_text(explanation));
    if let Some(error) = explanation.message.as_ref().and_then(|message| message.last_error.as_deref()) {
        text.push_str(&format!("  last error: {}\n", clean(error)));
    }
    if explanation.place == JobPlace::Dead {
        let job = explanation.reference();
        let show = session.job_command(&["dead", "show"], &job);
        let redrive = session.letters_command(&["dead", "redrive"], &job);
        text.push_str(&format!("  {show} shows its history, {redrive} puts it back\n"));
    }
    text
}

/// Returns a line with the sender of a job, and with the time of the send and the trace if they are known.
/// The line is empty if the job was not found.
fn sender_text(explanation: &Explanation) -> String {
    let Explanation { message, run, ended, .. } = explanation;
    let of_message = message.as_ref().map(|found| (&found.source, found.sent.as_deref(), &found.trace));
    let of_run = run.as_ref().map(|found| (&found.source, None, &found.trace));
    let of_end = ended.as_ref().map(|found| (&found.source, None, &found.trace));
    let Some((source, sent, trace)) = of_message.or(of_run).or(of_end) else { return String::new() };
    let sent = sent.map(|sent| format!(" at {}", clean(sent))).unwrap_or_default();
    let trace = trace.as_deref().map(|trace| format!(", trace {}", clean(trace))).unwrap_or_default();
    format!("  sent by {}{sent}{trace}\n", clean(source))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use jobqueue::storage::{Call, Interceptor, StoreError};
    use jobqueue::{Runtime, Storage, memory};
    use jobqueue_admin::{AccessLevel, Admin, RawSend};
    use tokio::time::{Instant, sleep};

    use super::*;

    /// Makes each request take a second.
    #[derive(Debug)]
    struct Distant;

    impl Interceptor for Distant {
        async fn call<T: Send>(
            &self,
            _: Call<'_>,
            perform: impl Future<Output = Result<T, StoreError>> + Send,
        ) -> Result<T, StoreError> {
            sleep(Duration::from_secs(1)).await;
            perform.await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn queues_are_searched_side_by_side() {
        let near = memory::open_on(Runtime::paused());
        let storage = Storage::from(near.stores().intercepted(&Arc::new(Distant)));
        let admin = Admin::builder(storage).access(AccessLevel::Operate).build();
        let queues: Vec<_> = (0..8).map(|number| format!("queue-{number}")).collect();
        for queue in &queues {
            admin.create_queue(queue).await.unwrap();
        }
        let session = Session::for_test(admin);
        let search = async |queues: &[String]| {
            let began = Instant::now();
            let jobs = queues.iter().map(|queue| JobReference::new(queue.as_str(), "gone")).collect();
            assert!(explain_anywhere(&session, jobs, Vec::new()).await.is_err());
            began.elapsed()
        };
        let (one, eight) = (search(&queues[..1]).await, search(&queues).await);
        assert!(eight < one * 4, "{eight:?}, and one in {one:?}");
    }

    #[tokio::test]
    async fn queue_that_cannot_be_searched_does_not_end_a_search() {
        let admin = Admin::builder(Storage::memory()).access(AccessLevel::Operate).build();
        admin.create_queue("mails").await.unwrap();
        let mail = RawSend::json("mail", "{}").unwrap().id("order-17");
        admin.send("mails", mail).await.unwrap();
        let session = Session::for_test(admin);
        // The first queue was deleted after the queues had been listed.
        let jobs = |id: &str| ["deleted", "mails"].map(|queue| JobReference::new(queue, id)).to_vec();
        let found = explain_anywhere(&session, jobs("order-17"), Vec::new()).await.unwrap();
        assert_eq!(found.job.queue, "mails");
        match explain_anywhere(&session, jobs("gone"), Vec::new()).await {
            Err(Failure::Failed(text)) => assert!(text.contains("`deleted` ("), "{text}"),
            other => panic!("{other:?}"),
        }
    }

    // A command in the explanation itself would lack the storage or the context.
    #[tokio::test]
    async fn dead_letters_that_were_not_looked_at_are_searched_by_a_command() {
        let storage = Storage::memory();
        let admin = Admin::builder(storage.clone()).access(AccessLevel::Operate).build();
        let dead = QueueName::new("mails-poison").unwrap();
        admin.create_queue("mails").await.unwrap();
        admin.create_queue(dead.as_str()).await.unwrap();
        for _ in 0..10_001 {
            let letter = jobqueue::storage::PutMessage::new("of another program");
            let _ = storage.queues().put(&dead, letter).await.unwrap();
        }
        let session = Session::for_test(admin);
        let found = session.admin.explain(&JobReference::new("mails", "7; exit")).await.unwrap();
        let shown = text(&session, &found);
        assert!(shown.contains("`jobqueue dead list --deep mails --id='7; exit'`"), "{shown}");
    }
}
