//! `explain`: where a job stands, and why it does not run.

use jobqueue::ErrorKind;
use jobqueue_admin::{Explanation, JobPlace};

use crate::args::{Global, JobArguments};
use crate::exit::Failure;
use crate::output::say;
use crate::session::{Need, Session};
use crate::text::clean;

pub(crate) async fn run(global: &Global, arguments: JobArguments) -> Result<(), Failure> {
    let session = Session::open(global, Need::Read).await?;
    let job = arguments.reference();
    let job = match session.admin.identify(&job).await {
        Err(error) if error.kind() == ErrorKind::Storage => {
            say(&format!(
                "it cannot be seen whether several senders use the id, so that the job may be another: {error:?}"
            ));
            job
        }
        identified => identified?,
    };
    let explanation = session.admin.explain(&job).await?;
    let printed = global.output.value(&explanation, || text(&session, &explanation));
    match explanation.reasons.iter().any(|reason| reason.code == "not_found") {
        true => Err(Failure::NothingMatched("the job was not found".to_owned())),
        false => printed,
    }
}

fn text(session: &Session, explanation: &Explanation) -> String {
    let mut text = format!("{}\n", clean(&explanation.summary));
    for reason in &explanation.reasons {
        text.push_str(&format!("  {}: {}\n", clean(reason.code), clean(&reason.text)));
    }
    if let Some(run) = &explanation.run {
        let worker = explanation.worker.as_deref().unwrap_or("-");
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
        let show = session.job_command("dead show", &job);
        let redrive = session.letters_command("dead redrive", &job);
        text.push_str(&format!("  {show} shows its history, {redrive} puts it back\n"));
    }
    text
}

/// Returns the line about the sender of a job that was found, with the time of sending and the trace if they are known.
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
