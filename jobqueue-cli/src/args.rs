//! The commands and their arguments.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use jobqueue::admin::JobReference;

use crate::commands::{
    backup, batches, cancel, dead, doctor, documents, groups, history, peek, queue, queues, schedules, send,
    serve, sweep, workers,
};
use crate::output::Output;

/// Looks at the queues, jobs and dead letters of a storage, and puts them right.
#[derive(Parser)]
#[command(name = "jobqueue", version, arg_required_else_help = true)]
#[command(
    after_help = "The storage is named by --storage, by --context, by the environment variable JOBQUEUE_STORAGE, or by the default \
context of the configuration file, which is for reading only. Storage strings with a key belong into the environment or the file, \
never on the command line.\n\nExit codes: 0 done, 1 failed, 2 wrong arguments, 3 nothing matched, 4 refused, 130 interrupted."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The arguments of all commands.
#[derive(Args)]
pub(crate) struct Global {
    /// The storage string, such as sqlite:jobs.db; not one with a key
    #[arg(long, global = true, value_name = "STRING", conflicts_with = "context")]
    pub(crate) storage: Option<String>,
    /// The context of the configuration file
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// The configuration file [default: jobqueue/config.toml in the user's folder for configuration]
    #[arg(long, global = true, value_name = "FILE", env = "JOBQUEUE_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// The form of the output
    #[arg(long, short, global = true, value_name = "FORM", value_enum, default_value_t)]
    pub(crate) output: Output,
    /// The name under which changes are recorded [default: the name of the login]
    #[arg(long, global = true, value_name = "NAME", env = "JOBQUEUE_OPERATOR")]
    pub(crate) operator: Option<String>,
    /// Appends each change to this file, one JSON document a line: who did what, when, and what came of it
    #[arg(long, global = true, value_name = "FILE", env = "JOBQUEUE_AUDIT_FILE")]
    pub(crate) audit_file: Option<PathBuf>,
    /// Answers all questions with yes
    #[arg(long, short, global = true)]
    pub(crate) yes: bool,
}

/// The commands.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Lists all queues: what waits, since when, and what died
    Queues(queues::Arguments),
    /// Shows, creates, pauses or resumes a queue, or changes its settings
    #[command(subcommand)]
    Queue(queue::Command),
    /// Lists the next jobs of a queue
    Peek(peek::Arguments),
    /// Sends jobs from a file or from standard input
    Send(send::Arguments),
    /// Lists, shows, puts back or deletes dead letters
    #[command(subcommand)]
    Dead(dead::Command),
    /// Lists the workers that are present, and what they run
    Workers(workers::Arguments),
    /// Says where a job stands, and why it does not run
    Explain(JobArguments),
    /// Lists, pauses, resumes or triggers schedules
    #[command(subcommand)]
    Schedules(schedules::Command),
    /// Lists who leads what
    Leaders,
    /// Lists batches, or shows one with the children that hold it up
    Batches(batches::Arguments),
    /// Lists the jobs that run in order, and for whom each waits
    Groups(groups::Arguments),
    /// Searches jobs that have ended, if workers keep a journal
    History(history::Arguments),
    /// Cancels a job that waits or runs; it becomes a dead letter
    Cancel(cancel::Arguments),
    /// Checks the storage: connection, permissions, settings, workers, orphans
    Doctor(doctor::Arguments),
    /// Removes payloads and records that no job needs any more
    Sweep(sweep::Arguments),
    /// Copies a SQLite storage to a new file while it is in use
    Backup(backup::Arguments),
    /// Serves the dashboard for the browser, /metrics, /scale, /live and /ready, on this machine alone unless told otherwise
    Serve(serve::Arguments),
    /// Prints the completions for a shell
    Completions(documents::CompletionArguments),
    /// Prints the manual page, or writes those of all commands
    Man(documents::ManArguments),
}

#[derive(Args)]
pub(crate) struct JobArguments {
    /// The name of the queue
    queue: String,
    /// The id of the job
    id: String,
    /// The sender, to tell jobs of several senders with one id apart
    #[arg(long)]
    source: Option<String>,
}

impl JobArguments {
    /// Returns the job that the arguments name.
    pub(crate) fn reference(self) -> JobReference {
        let job = JobReference::new(self.queue, self.id);
        match self.source {
            Some(source) => job.with_source(source),
            None => job,
        }
    }
}
