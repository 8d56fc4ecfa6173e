//! Foreign programs in Python, in a virtual environment that is made once.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// What is written to whoever has no Python.
const INSTALL_PYTHON: &str = "the interoperability tests need Python 3.9 or newer with venv; \
    install it with `apt-get install python3-venv`, `brew install python`, or from https://python.org";

/// Sends jobs with `interop/producer.py`; returns the events' identities.
///
/// # Panics
/// Without Python, and when the program fails.
pub fn produce(connection: &str, queue: &str, jobs: &[Value]) -> Vec<String> {
    let input: String = jobs.iter().map(|job| format!("{job}\n")).collect();
    run("producer.py", &[connection, queue], &input).lines().map(str::to_owned).collect()
}

/// What `interop/consumer.py` found.
#[derive(Debug)]
pub struct Consumed {
    /// The queue's metadata.
    pub metadata: Value,
    /// For each message its `text`, `dequeue_count` and `event`.
    pub messages: Vec<Value>,
}

/// Reads a queue with `interop/consumer.py`, and empties it unless it only peeks.
///
/// # Panics
/// Without Python, and when the program fails.
pub fn consume(connection: &str, queue: &str, peek: bool) -> Consumed {
    let arguments = [connection, queue, "--peek"];
    let output = run("consumer.py", &arguments[..if peek { 3 } else { 2 }], "");
    let mut lines = output.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON by the line"));
    let metadata = lines.next().expect("a first line")["metadata"].clone();
    Consumed { metadata, messages: lines.collect() }
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

/// The interpreter of the virtual environment, which is made if it is missing or of other packages.
fn python() -> PathBuf {
    let home = crate::azurite::target_folder().join("interop");
    fs::create_dir_all(&home).expect("a folder in target");
    // Test programs run at the same time; one installs, the others wait.
    let lock = File::create(home.join(".lock")).expect("a lock file");
    lock.lock().expect("the lock");
    let venv = home.join("venv");
    let python = if cfg!(windows) { venv.join("Scripts/python.exe") } else { venv.join("bin/python") };
    let wanted = fs::read(folder().join("requirements.txt")).expect("the committed list");
    let stamp = home.join(".installed");
    if fs::read(&stamp).ok().as_deref() != Some(wanted.as_slice()) || !python.exists() {
        let system = if cfg!(windows) { "python" } else { "python3" };
        step(Command::new(system).args(["-m", "venv", "--clear"]).arg(&venv));
        let requirements = folder().join("requirements.txt");
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"];
        step(Command::new(&python).args(pip).arg(requirements));
        fs::write(&stamp, &wanted).expect("a stamp in target");
    }
    python
}

fn step(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?} cannot be started ({error}): {INSTALL_PYTHON}"));
    assert!(
        output.status.success(),
        "{command:?} failed; {INSTALL_PYTHON}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
