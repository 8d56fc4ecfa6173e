//! A second process of the same program, for measurements that must not share a process with the sender.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::machine::{cpu_time, memory};
use crate::seen::Seen;
use crate::subject::{Result, Subject};

/// The task of the other process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Handles `number` jobs and reports their delays.
    Handle,
    /// Works on an empty queue for `number` seconds and reports the processor time.
    Idle,
    /// Handles `number` jobs and reports the memory.
    Memory,
}

/// The command line of the other process.
#[derive(Debug, Args)]
pub(crate) struct ChildArgs {
    #[arg(long)]
    role: Role,
    #[arg(long)]
    store: PathBuf,
    #[arg(long)]
    number: u64,
}

/// The report of the other process.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) delays: Vec<Duration>,
    pub(crate) cpu: Duration,
    /// The present and the maximum memory in MiB.
    pub(crate) memory: (f64, f64),
}

/// The main function of the other process.
#[expect(clippy::print_stdout, reason = "the parent reads it")]
pub(crate) async fn serve<S: Subject>(args: ChildArgs) -> Result<()> {
    let seen = Arc::new(Seen::default());
    let subject = S::open(&args.store).await?;
    let worker = subject.work(64, Arc::clone(&seen)).await?;
    let mut told = Told::default();
    println!("ready");
    match args.role {
        Role::Handle => {
            seen.wait_for(args.number).await?;
            told.delays = seen.sorted_delays();
        }
        Role::Idle => {
            // Work that is done once after the start does not count as idle.
            tokio::time::sleep(Duration::from_secs(3)).await;
            let before = cpu_time();
            tokio::time::sleep(Duration::from_secs(args.number)).await;
            told.cpu = cpu_time() - before;
        }
        Role::Memory => {
            seen.wait_for(args.number).await?;
            told.memory = memory();
        }
    }
    println!("{}", serde_json::to_string(&told)?);
    subject.stop(worker).await
}

/// The other process, seen from here.
pub(crate) struct Other {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Other {
    /// Starts it and waits until its worker runs.
    pub(crate) async fn start(role: Role, store: &Path, number: u64) -> Result<Self> {
        let role = role.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let mut child = Command::new(std::env::current_exe()?)
            .args(["child", "--role", &role, "--number", &number.to_string(), "--store"])
            .arg(store)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().ok_or("the other process has no output")?;
        let mut lines = BufReader::new(stdout).lines();
        match lines.next_line().await?.as_deref() {
            Some("ready") => Ok(Self { child, lines }),
            other => Err(format!("the other process did not start: {other:?}").into()),
        }
    }

    /// Waits for its report and for its end.
    pub(crate) async fn told(mut self) -> Result<Told> {
        let line = self.lines.next_line().await?.ok_or("the other process told nothing")?;
        self.child.wait().await?;
        Ok(serde_json::from_str(&line)?)
    }
}
