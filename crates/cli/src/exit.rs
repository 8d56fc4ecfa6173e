//! The ways in which a command ends, and their exit codes.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use jobqueue::{Error, ErrorKind};
use tokio_util::sync::CancellationToken;

use crate::text::{clean, colour_is_wanted};

/// The reason why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The storage or the system failed.
    Failed(String),
    /// The arguments or the configuration are wrong.
    Usage(String),
    /// A help text or an error of the argument parser.
    Parser(clap::Error),
    /// Nothing matched.
    NothingMatched(String),
    /// The change was not allowed or not confirmed.
    Refused(String),
    /// The settings of a queue differ from the given ones.
    Differs(String),
    /// A signal ended the command; the text reports the progress so far.
    Interrupted(String),
    /// The reader of the output closed the pipe. A command whose work failed returns that failure instead.
    ClosedPipe,
}

impl Failure {
    /// Returns the text; `None` for `Parser`, which prints its own, and for `ClosedPipe`, which has none.
    pub(crate) fn text_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::Failed(text)
            | Self::Usage(text)
            | Self::NothingMatched(text)
            | Self::Refused(text)
            | Self::Differs(text)
            | Self::Interrupted(text) => Some(text),
            Self::Parser(_) | Self::ClosedPipe => None,
        }
    }

    /// Prints the failure, and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let code = match &self {
            Self::Parser(error) => {
                // Prints help to standard output. If that fails, the text has no reader.
                let _ = error.print();
                return u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
            }
            Self::ClosedPipe => return ExitCode::SUCCESS,
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::NothingMatched(_) => 3,
            Self::Refused(_) => 4,
            Self::Differs(_) => 5,
            Self::Interrupted(_) => 130,
        };
        let prefix = if io::stderr().is_terminal() && colour_is_wanted() {
            "\u{1b}[1;31merror:\u{1b}[0m"
        } else {
            "error:"
        };
        let _ = writeln!(io::stderr(), "{prefix} {}", clean(&self.into_text()));
        ExitCode::from(code)
    }

    /// Returns the text without the exit code, for a command that continues after the failure.
    pub(crate) fn into_text(mut self) -> String {
        self.text_mut().map(std::mem::take).unwrap_or_default()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        // `Debug` prints all causes in one line.
        let text = format!("{error:?}");
        match error.kind() {
            ErrorKind::Forbidden => Self::Refused(text),
            ErrorKind::NotFound => Self::NothingMatched(text),
            ErrorKind::Invalid | ErrorKind::Configuration | ErrorKind::TooLarge => Self::Usage(text),
            _ => Self::Failed(text),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Failed(format!("input or output failed: {error}"))
    }
}

/// Runs `work`, which holds no messages, and drops it once `stop` fires. The failure then has the text
/// `interrupted`.
pub(crate) async fn or_stop<T>(
    work: impl Future<Output = Result<T, Failure>>,
    stop: &CancellationToken,
    interrupted: &str,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        done = work => done,
        () = stop.cancelled() => Err(Failure::Interrupted(interrupted.to_owned())),
    }
}
