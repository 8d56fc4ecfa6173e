//! The commands: a file for each group.

pub(crate) mod backup;
pub(crate) mod batches;
pub(crate) mod bulk;
pub(crate) mod cancel;
mod cost;
pub(crate) mod dead;
pub(crate) mod doctor;
pub(crate) mod documents;
pub(crate) mod explain;
pub(crate) mod groups;
pub(crate) mod history;
pub(crate) mod leaders;
pub(crate) mod peek;
pub(crate) mod queue;
pub(crate) mod queues;
pub(crate) mod schedules;
pub(crate) mod send;
pub(crate) mod serve;
pub(crate) mod settings;
pub(crate) mod sweep;
pub(crate) mod workers;

use tokio_util::sync::CancellationToken;

use crate::args::{Cli, Command, Global};
use crate::exit::Failure;

/// Runs a command until it ends or `stop` fires.
pub(crate) async fn run(cli: Cli, stop: &CancellationToken) -> Result<(), Failure> {
    let Cli { global, command } = cli;
    match command {
        // They hold messages, or are in the middle of many changes: they end by themselves once `stop` fires.
        Command::Peek(arguments) => peek::run(&global, arguments, stop).await,
        Command::Send(arguments) => send::run(&global, arguments, stop).await,
        Command::Dead(command) => dead::run(&global, command, stop).await,
        // Its requests end before it does.
        Command::Serve(arguments) => serve::run(&global, arguments, stop).await,
        other => {
            tokio::select! {
                biased;
                result = run_droppable(&global, other, stop) => result,
                () = stop.cancelled() => Err(Failure::Interrupted("interrupted".to_owned())),
            }
        }
    }
}

/// Runs a command that may be dropped at any time.
async fn run_droppable(global: &Global, command: Command, stop: &CancellationToken) -> Result<(), Failure> {
    match command {
        Command::Queues(arguments) => queues::run(global, arguments).await,
        Command::Queue(command) => queue::run(global, command, stop).await,
        Command::Workers(arguments) => workers::run(global, arguments).await,
        Command::Explain(arguments) => explain::run(global, arguments).await,
        Command::Schedules(command) => schedules::run(global, command, stop).await,
        Command::Leaders => leaders::run(global).await,
        Command::Batches(arguments) => batches::run(global, arguments).await,
        Command::Groups(arguments) => groups::run(global, arguments).await,
        Command::History(arguments) => history::run(global, arguments).await,
        Command::Cancel(arguments) => cancel::run(global, arguments, stop).await,
        Command::Doctor(arguments) => doctor::run(global, arguments).await,
        Command::Sweep(arguments) => sweep::run(global, arguments, stop).await,
        Command::Backup(arguments) => backup::run(global, arguments).await,
        Command::Completions(arguments) => documents::completions(&arguments),
        Command::Man(arguments) => documents::man(&arguments),
        Command::Peek(_) | Command::Send(_) | Command::Dead(_) | Command::Serve(_) => Ok(()),
    }
}
