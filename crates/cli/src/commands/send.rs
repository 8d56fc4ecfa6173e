//! `send`: sends jobs from a file or from standard input.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use futures_util::future::join_all;
use jobqueue::SendOptions;
use jobqueue_admin::{Admin, JobReference, RawSend};
use tokio::fs::File;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader, stdin};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::args::{Given, Global};
use crate::confirm;
use crate::exit::Failure;
use crate::last_line;
use crate::output::{Column, Output, add_lost_report, first_failure, rows, say};
use crate::session::{Need, Session};
use crate::text::{cell, duration, optional};

#[derive(Args)]
pub(crate) struct SendArguments {
    /// The name of the queue, which must exist
    queue: String,
    /// The file with the payload, which the worker checks against its type, or with the event; `-` is standard
    /// input
    #[arg(long, value_name = "FILE", default_value = "-")]
    file: PathBuf,
    /// The kind of the job; without it the input is a CloudEvent in JSON
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    kind: Option<String>,
    /// Reads a job from each line; with `--output ndjson` each job is printed when it was sent
    #[arg(long, conflicts_with = "id")]
    ndjson: bool,
    /// The media type of a payload that is not JSON
    #[arg(long, value_name = "TYPE", requires = "kind", conflicts_with = "ndjson")]
    content_type: Option<String>,
    /// The version of the payload [default: the newest version that fits]
    #[arg(long, value_name = "NUMBER", requires = "kind")]
    version: Option<u32>,
    /// Only checks the input
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    options: Options,
}

#[derive(Args)]
struct Options {
    /// The id of the job [default: a new id]; a second send under one id stores a second message, and both
    /// may run
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    id: Option<String>,
    /// The sender of the job, a URI reference
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    source: Option<String>,
    /// The key of the job
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,
    /// The time before which the job does not run
    #[arg(long, value_name = "TIME", value_parser = duration)]
    delay: Option<Duration>,
    /// The time after which the job expires, even if it has not run
    #[arg(long, value_name = "TIME", value_parser = duration)]
    ttl: Option<Duration>,
    /// An attribute of the event; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// Runs the job after the jobs of its key that were sent in order before it
    #[arg(long)]
    in_order: bool,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE, for example tenant=blue")?;
    if jobqueue::__internals::is_own_header(name) {
        return Err("the framework sets this header; use --in-order to keep the order".to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}

pub(crate) async fn run(
    global: &Global,
    arguments: SendArguments,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    Admin::check_target(&arguments.queue)?;
    let change = format!("send to the queue `{}`", arguments.queue);
    let session = if arguments.dry_run {
        Session::open(global, Need::Read).await?
    } else {
        confirm::change(global, Need::Change, &change, stop).await?
    };
    if arguments.dry_run {
        session.admin.queue(&arguments.queue).await?;
    }
    let mut sent = Sent { output: global.output, count: 0, unprinted: Vec::new() };
    let result = send_all(&session, &arguments, &mut sent, stop).await;
    if arguments.dry_run {
        result?;
        say("the input is valid as far as it can be checked without the types; nothing was sent");
        return Ok(());
    }
    let result = match result {
        // Without this, a table of no jobs would print "no jobs" before the failure.
        Err(failure) if sent.count == 0 && global.output == Output::Table => return Err(failure),
        result => result,
    };
    let jobs = &sent.unprinted;
    let printed = global.output.list(jobs, "jobs", || rows(COLUMNS, jobs));
    let printed = if jobs.is_empty() { printed } else { add_lost_report(printed, || ids(jobs)) };
    if let Some(kind) = arguments.kind.as_deref().filter(|_| sent.count > 0) {
        note_unknown_kind(&session, &arguments.queue, kind).await;
    }
    first_failure(result, printed)
}

/// Prints a message if no worker of the queue has a handler for the kind. Prints nothing if the records of
/// workers cannot be read.
pub(super) async fn note_unknown_kind(session: &Session, queue: &str, kind: &str) {
    if matches!(session.admin.is_unknown_kind(queue, kind).await, Ok(true)) {
        say(&format!("no running worker has a handler for the kind `{kind}` in the queue `{queue}`"));
    }
}

/// The jobs that were sent. As NDJSON each is printed at once, so that the output of a process that is killed
/// has all of them but the last few.
struct Sent {
    output: Output,
    count: usize,
    /// The jobs that are printed at the end.
    unprinted: Vec<JobReference>,
}

impl Sent {
    fn push(&mut self, job: JobReference) {
        self.count += 1;
        // After a failure to print, the others wait for the end, which reports it.
        let prints = self.output == Output::Ndjson && self.unprinted.is_empty();
        let print = || self.output.list(std::slice::from_ref(&job), "jobs", || rows(COLUMNS, [&job]));
        if !prints || print().is_err() {
            self.unprinted.push(job);
        }
    }
}

/// The maximum number of jobs that are sent concurrently.
const MAX_CONCURRENT_SENDS: usize = 64;
/// The number of bytes of input beyond which no further job is sent concurrently.
const MAX_CONCURRENT_BYTES: usize = 16 * 1024 * 1024;

/// The time that lines that were read wait for another line before they are sent. The input may be the output
/// of a program that keeps running.
const LINE_WAIT: Duration = Duration::from_millis(100);

/// Sends all jobs of the input. After an error, `sent` has the jobs sent so far.
async fn send_all(
    session: &Session,
    arguments: &SendArguments,
    sent: &mut Sent,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let mut input = Input::open(&arguments.file, arguments.ndjson, stop).await?;
    if !arguments.ndjson {
        return send_whole(session, arguments, &input.next(stop).await?, sent).await;
    }
    let (mut jobs, mut bytes) = (Vec::new(), 0);
    let mut max_jobs = MAX_CONCURRENT_SENDS;
    // The last line whose job was sent, or may have been.
    let mut last = 0;
    for number in 1_u64.. {
        let line = loop {
            let wait = if jobs.is_empty() { Duration::MAX } else { LINE_WAIT };
            match timeout(wait, input.next(stop)).await {
                Ok(line) => break line.map_err(|failure| at_line(failure, number, sent.count, last))?,
                Err(_) => {
                    (bytes, last) = (0, number - 1);
                    send_lines(session, arguments, std::mem::take(&mut jobs), sent).await?;
                }
            }
        };
        let text = Some(&*line).filter(|line| !line.trim_ascii().is_empty());
        let invalid = match text.map(|line| parse_job(arguments, line)) {
            Some(Ok(job)) => {
                // Jobs in order are sent one by one.
                if arguments.options.in_order || job.is_in_order() {
                    max_jobs = 1;
                }
                jobs.push((number, job));
                bytes += line.len();
                None
            }
            Some(Err(failure)) => Some(failure),
            None => None,
        };
        if line.is_empty() || invalid.is_some() || jobs.len() >= max_jobs || bytes > MAX_CONCURRENT_BYTES {
            (bytes, last) = (0, number);
            send_lines(session, arguments, std::mem::take(&mut jobs), sent).await?;
        }
        if let Some(failure) = invalid {
            return Err(at_line(failure, number, sent.count, number));
        }
        if line.is_empty() {
            break;
        }
    }
    Ok(())
}

/// Sends the input as one job.
async fn send_whole(
    session: &Session,
    arguments: &SendArguments,
    data: &[u8],
    sent: &mut Sent,
) -> Result<(), Failure> {
    let job = parse_job(arguments, data).map_err(|failure| suggest_lines(failure, data))?;
    if !arguments.dry_run {
        last_line::set("the job may have been sent");
        sent.push(session.admin.send(&arguments.queue, job).await?);
    }
    Ok(())
}

/// The input, read as a whole or line by line.
pub(super) struct Input {
    from: Box<dyn AsyncBufRead + Send + Unpin>,
    by_line: bool,
    /// The bytes of the next line, or of the whole input, that were read so far.
    part: Vec<u8>,
}

impl Input {
    /// Opens the input. A signal also interrupts the wait for the writer of a named pipe.
    pub(super) async fn open(file: &Path, by_line: bool, stop: &CancellationToken) -> Result<Self, Failure> {
        if file != Path::new("-") {
            let opened = stop.run_until_cancelled(File::open(file)).await.ok_or_else(interrupted)?;
            let opened = opened
                .map_err(|e| Failure::Usage(format!("the file {} cannot be read: {e}", file.display())))?;
            return Ok(Self::new(opened, by_line));
        }
        if std::io::stdin().is_terminal() {
            say("reading from the terminal; Ctrl-D ends the input");
        }
        Ok(Self::new(stdin(), by_line))
    }

    fn new(from: impl AsyncRead + Send + Unpin + 'static, by_line: bool) -> Self {
        Self { from: Box::new(BufReader::new(from)), by_line, part: Vec::new() }
    }

    /// Returns the next line, or the whole input; empty at the end. A signal also interrupts the wait for
    /// input.
    ///
    /// # Cancel safety
    /// The bytes that were read are kept for the next call.
    pub(super) async fn next(&mut self, stop: &CancellationToken) -> Result<Vec<u8>, Failure> {
        let read = async {
            if self.by_line {
                self.from.read_until(b'\n', &mut self.part).await?;
            } else {
                self.from.read_to_end(&mut self.part).await?;
            }
            Ok(std::mem::take(&mut self.part))
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => Err(interrupted()),
            part = read => part,
        }
    }
}

fn interrupted() -> Failure {
    Failure::Interrupted("stopped while waiting for the input".to_owned())
}

/// Sends jobs concurrently, each with the number of its line. Each line whose job fails is named.
async fn send_lines(
    session: &Session,
    arguments: &SendArguments,
    jobs: Vec<(u64, RawSend)>,
    sent: &mut Sent,
) -> Result<(), Failure> {
    if arguments.dry_run {
        return Ok(());
    }
    let send = |(number, job)| async move { (number, session.admin.send(&arguments.queue, job).await) };
    let last = jobs.last().map_or(0, |(number, _)| *number);
    let count = sent.count;
    last_line::set(format!(
        "{count} jobs were sent, perhaps {} more, and none after line {last}",
        jobs.len()
    ));
    let mut failed = None;
    for (number, answer) in join_all(jobs.into_iter().map(send)).await {
        match answer {
            Ok(job) => sent.push(job),
            Err(error) if failed.is_some() => say(&format!("line {number}: {error:?}")),
            Err(error) => failed = Some((number, error)),
        }
    }
    last_line::set(format!("{} jobs were sent, none after line {last}", sent.count));
    failed.map_or(Ok(()), |(number, error)| Err(at_line(error.into(), number, sent.count, last)))
}

/// Suggests the option for many jobs, if the input is invalid as one job and has several lines.
fn suggest_lines(failure: Failure, data: &[u8]) -> Failure {
    let lines = data.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
    match failure {
        Failure::Usage(text) if lines.count() > 1 => {
            Failure::Usage(format!("{text}; add --ndjson to read a job from each line"))
        }
        other => other,
    }
}

/// Parses a job. Errors never quote the input.
fn parse_job(arguments: &SendArguments, data: &[u8]) -> Result<RawSend, Failure> {
    let text = || std::str::from_utf8(data).map_err(|_| Failure::Usage("the input is not UTF-8".to_owned()));
    let job = match (&arguments.kind, &arguments.content_type) {
        (Some(kind), Some(media_type)) => RawSend::bytes(kind, media_type, data.to_vec())?,
        (Some(kind), None) => RawSend::json(kind, text()?.trim())?,
        (None, _) => RawSend::event(text()?.trim())?,
    };
    let job =
        job.given(arguments.version, RawSend::version).given(arguments.options.key.as_deref(), RawSend::key);
    Ok(job.with(arguments.options.as_send_options()))
}

impl Options {
    fn as_send_options(&self) -> SendOptions {
        let options = SendOptions::new()
            .given(self.id.as_ref(), SendOptions::id)
            .given(self.source.as_deref(), SendOptions::source)
            .given(self.delay, SendOptions::delay)
            .given(self.ttl, SendOptions::ttl)
            .given(self.in_order.then_some(()), |options, ()| options.in_order());
        self.header.iter().fold(options, |options, (name, value)| options.header(name, value))
    }
}

/// Adds to a failure its line, the number of jobs that were sent, and the last line whose job may be among
/// them.
fn at_line(mut failure: Failure, number: u64, sent: usize, last: u64) -> Failure {
    if let Some(text) = failure.text_mut() {
        *text = format!("line {number}: {text} ({sent} jobs were sent, none after line {last})");
    }
    failure
}

/// Returns the ids under which jobs were sent.
fn ids(sent: &[JobReference]) -> String {
    let ids: Vec<_> = sent.iter().map(|job| job.id.as_str()).collect();
    format!("sent {}", ids.join(", "))
}

const COLUMNS: &[Column<JobReference>] = &[
    ("QUEUE", |job| cell(&job.queue)),
    ("ID", |job| cell(&job.id)),
    ("SOURCE", |job| optional(job.source.as_deref())),
];
