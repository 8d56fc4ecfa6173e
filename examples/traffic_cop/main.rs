//! Traffic Cop: one of several processes is in control, and another takes over when it dies.
//!
//! The program starts `--instances` of itself on one storage. Each is a candidate for the same leadership,
//! and prints when it gains and loses control. The leading instance is killed after `--kill-after` seconds.
//! The program prints the time until another leads: at most the lease and a sixth of it, the poll interval of
//! candidates.

#![allow(clippy::print_stdout, reason = "a program for people to look at")]

mod instance;

use std::collections::BTreeMap;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use jobqueue::shutdown_signal;
use jobqueue_examples::{Failure, end, start};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

/// Shows how control moves between processes.
#[derive(Debug, Parser)]
struct Options {
    /// The number of candidate processes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    instances: u32,
    /// The storage [default: JOBQUEUE_STORAGE, or sqlite:target/traffic_cop.db]
    #[arg(long)]
    storage: Option<String>,
    /// The time until a dead leader is replaced, in seconds
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(15..=60))]
    lease: u64,
    /// Kills the leading instance after this many seconds [default: never]
    #[arg(long)]
    kill_after: Option<u64>,
    /// Stops after this many seconds [default: at Ctrl-C]
    #[arg(long)]
    duration: Option<u64>,
    /// Runs as a candidate with this number, until standard input ends
    #[arg(long, hide = true)]
    instance: Option<u32>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options: Options = start();
    end(match options.instance {
        Some(number) => instance::run(number, &options).await,
        None => direct(&options).await,
    })
}

/// Starts the instances, relays their output, and kills the leader at the configured time.
async fn direct(options: &Options) -> Result<(), Failure> {
    let (say, mut said) = mpsc::channel(16);
    let mut children = BTreeMap::new();
    for number in 1..=options.instances {
        children.insert(number, launch(number, options, say.clone())?);
    }
    drop(say);
    let mut kill = std::pin::pin!(after(options.kill_after));
    let mut stop = std::pin::pin!(async {
        tokio::select! {
            () = after(options.duration) => {}
            () = shutdown_signal() => {}
        }
    });
    let (mut in_control, mut due, mut killed) = (None, false, None);
    loop {
        tokio::select! {
            line = said.recv() => match line {
                Some((number, line)) => {
                    println!("{line}");
                    if line.contains("in control") {
                        in_control = Some(number);
                        if let Some((former, since)) = killed.take() {
                            report(former, number, since);
                        }
                    } else if in_control == Some(number) {
                        in_control = None;
                    }
                }
                // Each instance has printed its error on standard error.
                None => return Err("all instances have ended".into()),
            },
            () = &mut kill, if !due => due = true,
            () = &mut stop => break,
        }
        if due
            && killed.is_none()
            && let Some(number) = in_control.take()
        {
            if let Some(mut child) = children.remove(&number) {
                child.kill().await?;
                println!("instance {number}: killed");
                killed = Some((number, Instant::now()));
            }
            kill.set(after(None));
            due = false;
        }
    }
    finish(children, said).await
}

/// Ends the instances, and relays their last lines.
async fn finish(
    mut children: BTreeMap<u32, Child>,
    mut said: mpsc::Receiver<(u32, String)>,
) -> Result<(), Failure> {
    for child in children.values_mut() {
        // The instance stops when its standard input ends.
        drop(child.stdin.take());
    }
    while let Some((_, line)) = said.recv().await {
        println!("{line}");
    }
    for (number, mut child) in children {
        let status = child.wait().await?;
        if !status.success() {
            return Err(format!("instance {number} failed: {status}").into());
        }
    }
    Ok(())
}

fn report(former: u32, now: u32, since: Instant) {
    println!(
        "control moved from instance {former} to instance {now} in {:.1} s",
        since.elapsed().as_secs_f64()
    );
}

async fn after(seconds: Option<u64>) {
    match seconds {
        Some(seconds) => sleep(Duration::from_secs(seconds)).await,
        None => std::future::pending().await,
    }
}

fn launch(number: u32, options: &Options, say: mpsc::Sender<(u32, String)>) -> Result<Child, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--instance", &number.to_string(), "--lease", &options.lease.to_string()]);
    if let Some(storage) = &options.storage {
        // Everybody on the machine can read arguments; a connection string contains a key.
        command.env("JOBQUEUE_STORAGE", storage);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn()?;
    let output = child.stdout.take().ok_or("an instance has no output")?;
    tokio::spawn(async move {
        let mut lines = BufReader::new(output).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if say.send((number, line)).await.is_err() {
                break;
            }
        }
    });
    Ok(child)
}
