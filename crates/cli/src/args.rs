//! The arguments that commands share.

use std::path::PathBuf;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
pub(crate) use jobqueue_admin::Given;
use jobqueue_admin::JobReference;

use crate::output::Output;

/// The options that every command accepts.
#[derive(Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// The storage string, such as sqlite:jobs.db; a string with a key is refused
    #[arg(long, global = true, value_name = "STRING", conflicts_with = "context")]
    pub(crate) storage: Option<String>,
    /// A context of the configuration file; may be repeated for queues, workers, doctor and serve
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Vec<String>,
    /// The configuration file [default: jobqueue/config.toml in the user's configuration folder]
    #[arg(long, global = true, value_name = "FILE", env = "JOBQUEUE_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// The output format
    ///
    /// For example, `jobqueue dead list mails --output json | jq -r '.letters[].id'` prints the ids of dead
    /// letters, each on a line.
    #[arg(long, short, global = true, value_name = "FORMAT", value_enum, default_value_t)]
    pub(crate) output: Output,
    /// The name under which changes are recorded [default: the login name]
    #[arg(long, global = true, value_name = "NAME", env = "JOBQUEUE_OPERATOR")]
    pub(crate) operator: Option<String>,
    /// Appends each change to this file as a line of JSON with user, action, time and result
    #[arg(long, global = true, value_name = "FILE", env = "JOBQUEUE_AUDIT_FILE")]
    pub(crate) audit_file: Option<PathBuf>,
    /// Answers yes to all questions
    #[arg(long, short, global = true)]
    pub(crate) yes: bool,
}

#[derive(Args)]
pub(crate) struct JobArguments {
    /// The name of the queue
    queue: String,
    /// The id of the job
    id: String,
    /// The sender, if several senders use the same id
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    source: Option<String>,
}

impl JobArguments {
    pub(crate) fn reference(self) -> JobReference {
        JobReference::new(self.queue, self.id).given(self.source, JobReference::with_source)
    }
}
