//! The arguments that commands share.

use std::path::PathBuf;

use clap::Args;
pub(crate) use jobqueue_admin::Given;
use jobqueue_admin::JobReference;

use crate::output::Output;

/// The arguments of all commands.
#[derive(Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// The storage string, such as sqlite:jobs.db; not one with a key
    #[arg(long, global = true, value_name = "STRING", conflicts_with = "context")]
    pub(crate) storage: Option<String>,
    /// A context of the configuration file; queues, workers, doctor and serve accept it several times
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Vec<String>,
    /// The configuration file [default: jobqueue/config.toml in the user's folder for configuration]
    #[arg(long, global = true, value_name = "FILE", env = "JOBQUEUE_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// The form of the output
    #[arg(long, short, global = true, value_name = "FORM", value_enum, default_value_t)]
    pub(crate) output: Output,
    /// The name under which changes are recorded [default: the name of the login]
    #[arg(long, global = true, value_name = "NAME", env = "JOBQUEUE_OPERATOR")]
    pub(crate) operator: Option<String>,
    /// Appends each change to this file, one JSON document a line with user, action, time and result
    #[arg(long, global = true, value_name = "FILE", env = "JOBQUEUE_AUDIT_FILE")]
    pub(crate) audit_file: Option<PathBuf>,
    /// Answers all questions with yes
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
    #[arg(long)]
    source: Option<String>,
}

impl JobArguments {
    pub(crate) fn reference(self) -> JobReference {
        JobReference::new(self.queue, self.id).given(self.source, JobReference::with_source)
    }
}
