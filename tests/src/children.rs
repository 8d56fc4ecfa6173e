//! Runs parts of a test in other processes. A test that needs them starts its own program again, with one
//! test as the part.
//!
//! A part is an ordinary test that returns immediately unless [`part`] returns its input.

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

const INPUT: &str = "JOBQUEUE_TEST_PART";

/// Returns the input of the part `name`, if this process was started for that part.
pub fn part(name: &str) -> Option<String> {
    let input = env::var(INPUT).ok()?;
    input.strip_prefix(name)?.strip_prefix('=').map(str::to_owned)
}

/// Another process, which runs the test `name` as a part.
#[derive(Debug)]
pub struct Part {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Part {
    /// Starts the part.
    ///
    /// # Panics
    /// If the process cannot be started.
    pub fn start(name: &str, input: impl AsRef<OsStr>) -> Self {
        Self::spawn(Command::new(env::current_exe().expect("the test's own path")), name, input)
    }

    /// Starts the part through `surroundings`, a command that takes a program and its arguments and runs it
    /// in another environment.
    ///
    /// # Panics
    /// If the process cannot be started.
    pub fn start_in(mut surroundings: Command, name: &str, input: impl AsRef<OsStr>) -> Self {
        surroundings.arg(env::current_exe().expect("the test's own path"));
        Self::spawn(surroundings, name, input)
    }

    fn spawn(mut command: Command, name: &str, input: impl AsRef<OsStr>) -> Self {
        let mut value = std::ffi::OsString::from(format!("{name}="));
        value.push(input);
        let mut child = command
            .args([name, "--exact", "--nocapture", "--test-threads=1"])
            .env(INPUT, value)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test's own program starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, output }
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the text after `>> ` of the next line that contains it, by which parts report, or `None` after
    /// the part has ended.
    pub fn says(&mut self) -> Option<String> {
        // The test harness may have written a prefix on the same line.
        self.output.by_ref().map_while(Result::ok).find_map(|line| {
            let (_, words) = line.split_once(">> ")?;
            Some(words.to_owned())
        })
    }

    /// Kills the process, as SIGKILL does, and returns its remaining reports.
    ///
    /// # Panics
    /// If it cannot be killed.
    pub fn kill(mut self) -> Vec<String> {
        self.child.kill().expect("the part can be killed");
        let mut rest = Vec::new();
        while let Some(words) = self.says() {
            rest.push(words);
        }
        self.child.wait().expect("the part ends");
        rest
    }

    /// Waits for the part to end, and returns its remaining reports.
    ///
    /// # Panics
    /// If the part failed.
    pub fn finish(mut self) -> Vec<String> {
        drop(self.child.stdin.take());
        let mut rest = Vec::new();
        while let Some(words) = self.says() {
            rest.push(words);
        }
        let status = self.child.wait().expect("the part ends");
        assert!(status.success(), "the part failed: {status}");
        rest
    }
}

/// Kills the process, so that a failed test leaves none running.
impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prints a report for the process that started this part.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => {
        println!("\n>> {}", format_args!($($words)*))
    };
}
