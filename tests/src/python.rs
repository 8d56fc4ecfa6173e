//! Runs the external Python programs of the interoperability tests.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use jobqueue_test_support::python::environment;
use serde_json::Value;

/// Sends jobs with `interop/producer.py`, and returns the identities of the events.
///
/// # Panics
/// If Python is missing, or the program fails.
pub fn produce(connection: &str, queue: &str, jobs: &[Value]) -> Vec<String> {
    let input: String = jobs.iter().map(|job| format!("{job}\n")).collect();
    run("producer.py", &[connection, queue], &input).lines().map(str::to_owned).collect()
}

/// The output of `interop/consumer.py`.
#[derive(Debug)]
pub struct Consumed {
    /// The queue's metadata.
    pub metadata: Value,
    /// The `text`, `dequeue_count` and `event` of each message.
    pub messages: Vec<Value>,
}

/// Reads a queue with `interop/consumer.py`, and empties it unless it only peeks.
///
/// # Panics
/// If Python is missing, or the program fails.
pub fn consume(connection: &str, queue: &str, peek: bool) -> Consumed {
    let arguments = [connection, queue, "--peek"];
    let output = run("consumer.py", &arguments[..if peek { 3 } else { 2 }], "");
    let mut lines = output.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON by the line"));
    let metadata = lines.next().expect("a first line")["metadata"].clone();
    Consumed { metadata, messages: lines.collect() }
}

/// Runs `interop/jobs.py`, which knows the wire format and nothing else of this library. Returns its output.
///
/// # Panics
/// If Python is missing, or the program fails.
pub fn jobs(connection: &str, queue: &str, command: &[&str], input: &str) -> String {
    let arguments: Vec<&str> = [connection, queue].into_iter().chain(command.iter().copied()).collect();
    run("jobs.py", &arguments, input)
}

fn run(program: &str, arguments: &[&str], input: &str) -> String {
    let mut child = Command::new(python())
        .arg(folder().join(program))
        .args(arguments)
        .env("PYTHONUTF8", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("Python starts");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("a program that reads");
    let output = child.wait_with_output().expect("a program that ends");
    assert!(output.status.success(), "{program} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("interop")
}

/// Returns the interpreter of the virtual environment.
fn python() -> PathBuf {
    environment("interop", &folder().join("requirements.txt")).unwrap_or_else(|error| panic!("{error}"))
}
