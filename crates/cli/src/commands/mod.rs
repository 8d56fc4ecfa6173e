//! The commands and their arguments, with a file for each group of commands.

mod backup;
mod batches;
mod cancel;
mod cost;
mod dead;
mod dead_changes;
mod dead_text;
mod doctor;
mod documents;
mod explain;
mod explain_queue;
mod groups;
mod history;
mod leaders;
mod peek;
mod queue;
mod queues;
mod run_now;
mod schedules;
mod send;
mod serve;
mod settings;
mod sweep;
mod workers;

use clap::{Parser, Subcommand};
use tokio_util::sync::CancellationToken;

use crate::args::{Global, JobArguments};
use crate::exit::{Failure, or_stop};
use crate::last_line;

/// Inspects and repairs the queues, jobs and dead letters of a storage.
#[derive(Parser)]
#[command(name = "jobqueue", version, arg_required_else_help = true)]
#[command(after_help = "The storage is chosen by --storage, by --context, by the environment variable \
JOBQUEUE_STORAGE, or by the default context of the configuration file, which is for reading only. Pass \
storage strings with a key in the environment or in the file, never on the command line.\n\nExit codes: 0 \
done, 1 failed, 2 wrong arguments, 3 nothing matched, 4 refused, 5 settings differ, 130 interrupted.")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Lists all queues with their waiting jobs and dead letters
    Queues(queues::QueuesArguments),
    /// Shows, creates, pauses or resumes a queue, or changes its settings
    #[command(subcommand)]
    Queue(queue::QueueCommand),
    /// Lists the next jobs of a queue
    Peek(peek::PeekArguments),
    /// Sends jobs from a file or from standard input
    Send(send::SendArguments),
    /// Lists, shows, puts back or deletes dead letters
    #[command(subcommand)]
    Dead(dead::DeadCommand),
    /// Lists the workers and their running jobs
    Workers(workers::WorkersArguments),
    /// Shows the state of a job, and why it does not run; of a queue, how fast its jobs end and what holds
    /// them up
    Explain(explain::ExplainArguments),
    /// Lists, pauses, resumes or triggers schedules
    #[command(subcommand)]
    Schedules(schedules::SchedulesCommand),
    /// Lists the leaderships and their holders
    Leaders,
    /// Lists batches, or shows one with the children that block it
    Batches(batches::BatchesArguments),
    /// Lists the jobs sent in order, and the job that each waits for
    Groups(groups::GroupsArguments),
    /// Searches ended jobs, if workers keep a journal
    History(history::HistoryArguments),
    /// Cancels waiting or running jobs, by id, key, kind or batch; they become dead letters
    Cancel(cancel::CancelArguments),
    /// Makes a job due now that is delayed or backing off, on SQLite and PostgreSQL
    RunNow(JobArguments),
    /// Checks the storage: connection, permissions, settings, workers, orphans
    Doctor(doctor::DoctorArguments),
    /// Removes orphaned payloads and expired records, but not batches
    Sweep(sweep::SweepArguments),
    /// Copies a SQLite storage to a new file while it is in use
    Backup(backup::BackupArguments),
    /// Serves the dashboard for the browser, /metrics, /scale, /live and /ready, by default to this machine
    /// only
    Serve(serve::ServeArguments),
    /// Prints the completions for a shell
    Completions(documents::CompletionArguments),
    /// Prints the manual page, or writes a page for each command
    Man(documents::ManArguments),
}

pub(crate) async fn run(cli: Cli, stop: &CancellationToken) -> Result<(), Failure> {
    let Cli { global, command } = cli;
    begin_last_line(&command);
    // These commands hold messages, make many changes, write a file or answer requests. They must not be
    // dropped, and end by themselves once `stop` fires.
    let ends_by_itself = matches!(
        command,
        Command::Peek(_)
            | Command::Send(_)
            | Command::Dead(_)
            | Command::Cancel(_)
            | Command::Sweep(_)
            | Command::Backup(_)
            | Command::Serve(_)
    );
    let interrupted = if may_change(&command) {
        "interrupted; a change that had begun may have been made: check before you repeat it"
    } else {
        "interrupted"
    };
    let work = execute(&global, command, stop);
    if ends_by_itself { work.await } else { or_stop(work, stop, interrupted).await }
}

/// Returns whether the command changes something at once, so that it may have done so when it is dropped.
fn may_change(command: &Command) -> bool {
    match command {
        Command::Queue(command) => command.may_change(),
        Command::Schedules(command) => command.may_change(),
        Command::RunNow(_) => true,
        _ => false,
    }
}

/// Sets the line of a command that has just begun.
fn begin_last_line(command: &Command) {
    let held = last_line::HELD;
    last_line::set(match command {
        Command::Peek(_) | Command::Dead(_) => format!("nothing was changed; {held}"),
        Command::Send(_) => "no job was sent".to_owned(),
        Command::Sweep(_) => "what was removed stays removed; the same command removes the rest".to_owned(),
        Command::Backup(_) => {
            "no copy has its name yet; a file that ends with `.part` may be left beside it".to_owned()
        }
        Command::Serve(_) => format!("a change that had begun may have been made; of dead letters, {held}"),
        changing if may_change(changing) => {
            "a change that had begun may have been made: check before you repeat it".to_owned()
        }
        _ => "nothing was changed".to_owned(),
    });
}

async fn execute(global: &Global, command: Command, stop: &CancellationToken) -> Result<(), Failure> {
    match command {
        Command::Queues(arguments) => queues::run(global, arguments, stop).await,
        Command::Queue(command) => queue::run(global, command, stop).await,
        Command::Peek(arguments) => peek::run(global, arguments, stop).await,
        Command::Send(arguments) => send::run(global, arguments, stop).await,
        Command::Dead(command) => dead::run(global, command, stop).await,
        Command::Workers(arguments) => workers::run(global, arguments).await,
        Command::Explain(arguments) => explain::run(global, arguments).await,
        Command::Schedules(command) => schedules::run(global, command, stop).await,
        Command::Leaders => leaders::run(global).await,
        Command::Batches(arguments) => batches::run(global, arguments).await,
        Command::Groups(arguments) => groups::run(global, arguments).await,
        Command::History(arguments) => history::run(global, arguments).await,
        Command::Cancel(arguments) => cancel::run(global, arguments, stop).await,
        Command::RunNow(arguments) => run_now::run(global, arguments, stop).await,
        Command::Doctor(arguments) => doctor::run(global, arguments).await,
        Command::Sweep(arguments) => sweep::run(global, arguments, stop).await,
        Command::Backup(arguments) => backup::run(global, arguments, stop).await,
        Command::Serve(arguments) => serve::run(global, arguments, stop).await,
        Command::Completions(arguments) => documents::completions(&arguments),
        Command::Man(arguments) => documents::man(&arguments),
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;

    use jobqueue::Storage;
    use jobqueue_admin::{AccessLevel, Admin, RawSend};

    use super::*;

    // D39: the text did not say whether the change was made.
    #[tokio::test]
    async fn change_that_is_interrupted_may_have_been_made() {
        let folder = tempfile::tempdir().unwrap();
        let storage = format!("sqlite:{}", folder.path().join("jobs.db").display());
        let admin = Admin::builder(Storage::connect(&storage).await.unwrap()).access(AccessLevel::Operate);
        admin.build().create_queue("mails").await.unwrap();
        let stop = CancellationToken::new();
        stop.cancel();
        let commands = [
            (["queue", "pause", "mails"], true),
            (["queue", "show", "mails"], false),
            (["explain", "mails", "1"], false),
        ];
        for (command, is_change) in commands {
            let cli = Cli::parse_from(["jobqueue", "--storage", &storage].into_iter().chain(command));
            let Err(Failure::Interrupted(text)) = run(cli, &stop).await else { panic!("{command:?}") };
            assert_eq!(text.contains("may have been made"), is_change, "{text}");
        }
    }

    // round 34, A3: it was dropped between its requests and the notification of the workers.
    #[tokio::test]
    async fn cancellation_that_has_begun_is_not_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let storage = format!("sqlite:{}", folder.path().join("jobs.db").display());
        let admin = Admin::builder(Storage::connect(&storage).await.unwrap()).access(AccessLevel::Operate);
        let admin = admin.build();
        admin.create_queue("mails").await.unwrap();
        for id in ["1", "2"] {
            let job = RawSend::json("mail", "{}").unwrap().id(id);
            let _ = admin.send("mails", job).await.unwrap();
        }
        // The stop fires before each of its polls in turn, until it comes after the last.
        for polls in 0.. {
            let cli = Cli::parse_from(["jobqueue", "--storage", &storage, "cancel", "mails", "1", "2"]);
            let stop = CancellationToken::new();
            let mut running = pin!(run(cli, &stop));
            let mut left = polls;
            let ended = poll_fn(|context| {
                match left {
                    0 => stop.cancel(),
                    _ => left -= 1,
                }
                running.as_mut().poll(context)
            });
            match ended.await {
                Ok(()) if !stop.is_cancelled() => break,
                Ok(()) => {}
                Err(Failure::Interrupted(text)) => {
                    let is_whole = text.contains("nothing was changed") || text.contains("of 2 jobs: their");
                    assert!(is_whole, "{polls}: {text}");
                }
                Err(failure) => panic!("{polls}: {failure:?}"),
            }
        }
    }
}
