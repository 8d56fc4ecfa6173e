//! Tests that need further processes start their own program again, with one test as a part.
//!
//! A part is an ordinary test that returns at once unless [`part`] returns its input.

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

const INPUT: &str = "JOBQUEUE_TEST_PART";

/// Returns the input of the part `name`, if this process was started for it.
pub fn part(name: &str) -> Option<String> {
    let input = env::var(INPUT).ok()?;
    input.strip_prefix(name)?.strip_prefix('=').map(str::to_owned)
}

/// Another process, which runs test `name` as a part.
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

    /// Starts the part through a command that takes a program and its arguments, and runs it in another environment.
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

    /// Returns the rest of the next line that begins with `>> `, by which parts report; `None` when the part has
    /// ended.
    pub fn says(&mut self) -> Option<String> {
        // The test harness may have written something on the same line before.
        self.output.by_ref().map_while(Result::ok).find_map(|line| {
            let (_, words) = line.split_once(">> ")?;
            Some(words.to_owned())
        })
    }

    /// Kills the process, as SIGKILL does.
    ///
    /// # Panics
    /// If it cannot be ended.
    pub fn kill(mut self) -> Vec<String> {
        self.child.kill().expect("the part can be killed");
        let mut rest = Vec::new();
        while let Some(words) = self.says() {
            rest.push(words);
        }
        self.child.wait().expect("the part ends");
        rest
    }

    /// Waits for the end.
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

/// A test that fails leaves no process running.
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
