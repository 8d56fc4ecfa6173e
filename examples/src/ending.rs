//! Ends a program: without output, or with one line that says what is wrong.

use std::error::Error;
use std::process::ExitCode;

/// Any error of an example.
pub type Failure = Box<dyn Error + Send + Sync>;

/// Returns exit code 0; after an error prints one line to standard error and returns 1.
pub fn end(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut line = error.to_string();
            let mut cause = error.source();
            while let Some(next) = cause {
                let text = next.to_string();
                if !line.contains(&text) {
                    line = format!("{line}: {text}");
                }
                cause = next.source();
            }
            eprintln!("error: {}", line.replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}
