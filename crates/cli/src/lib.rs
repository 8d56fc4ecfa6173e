//! The command line of jobqueue, as the binary `jobqueue`: a thin layer over [`jobqueue_admin`] that parses
//! and prints.
//!
//! `jobqueue help` lists the commands and the exit codes. The guide describes them on its page "operating".
//! The output of `--output json` and `--output ndjson` follows `schema/output.schema.json` of this package;
//! fields may be added within a major version.
#![forbid(unsafe_code)]

mod args;
mod audit;
mod commands;
mod config;
mod confirm;
mod contexts;
mod exit;
mod filter;
mod http;
mod last_line;
mod opening;
mod output;
mod secrets;
mod session;
mod text;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use jobqueue::__internals::shutdown_signal_then;
use tokio_util::sync::CancellationToken;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::commands::{Cli, Command};
use crate::exit::Failure;

/// Runs the command of the program's arguments, and returns its exit code.
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let result = secrets::refuse_in(&arguments).and_then(|()| parse(arguments)).and_then(execute);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Returns the definition of all commands, for documentation and completions.
pub fn command() -> clap::Command {
    Cli::command()
}

fn parse(arguments: Vec<OsString>) -> Result<Cli, Failure> {
    let matches = command().try_get_matches_from(arguments).map_err(Failure::Parser)?;
    Cli::from_arg_matches(&matches).map_err(Failure::Parser)
}

fn execute(cli: Cli) -> Result<(), Failure> {
    init_logging(matches!(cli.command, Command::Serve(_)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::Failed(format!("no runtime can be started: {error}")))?;
    let result = runtime.block_on(async {
        let stop = CancellationToken::new();
        let signalled = stop.clone();
        tokio::spawn(async move {
            shutdown_signal_then(last_line::print).await;
            signalled.cancel();
        });
        commands::run(cli, &stop).await
    });
    // A thread that is blocked on the answer to a question does not end by itself.
    runtime.shutdown_background();
    result
}

/// Logs warnings of the library to standard error. A server also logs each change with its time and its
/// operator, because it runs for long and has several operators.
fn init_logging(serves: bool) {
    let colour = std::io::stderr().is_terminal() && text::colour_is_wanted();
    let lines = tracing_subscriber::fmt()
        .with_max_level(Level::INFO)
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .with_target(false);
    let changes = if serves { Level::INFO } else { Level::WARN };
    let shown = Targets::new().with_default(Level::WARN).with_target("jobqueue_admin", changes);
    // Fails only if a subscriber is already installed, which then shows the warnings.
    let _ = if serves {
        lines.finish().with(shown).try_init()
    } else {
        lines.without_time().finish().with(shown).try_init()
    };
}
