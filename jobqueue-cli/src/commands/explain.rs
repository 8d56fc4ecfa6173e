//! `explain`: where a job stands, and why it does not run.

use clap::Args;
use jobqueue::admin::{Explanation, JobPlace, JobReference};

use crate::args::Global;
use crate::exit::Failure;
use crate::session::{Need, Session};
use crate::text::clean;

#[derive(Args)]
pub(crate) struct Arguments {
    /// The name of the queue
    queue: String,
    /// The id of the job
    id: String,
    /// The sender, to tell jobs of several senders with one id apart
    #[arg(long)]
    source: Option<String>,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    let mut job = JobReference::new(arguments.queue, arguments.id);
    if let Some(source) = arguments.source {
        job = job.with_source(source);
    }
    let session = Session::open(global, Need::Read).await?;
    let explanation = session.admin.explain(&job).await?;
    global.output.value(&explanation, || text(&explanation))
}

fn text(explanation: &Explanation) -> String {
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
    if let Some(error) = explanation.message.as_ref().and_then(|message| message.last_error.as_deref()) {
        text.push_str(&format!("  last error: {}\n", clean(error)));
    }
    if explanation.place == JobPlace::Dead {
        text.push_str("  `jobqueue dead show` shows its history, `jobqueue dead redrive` puts it back\n");
    }
    text
}
