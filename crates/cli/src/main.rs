//! The program `jobqueue`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    jobqueue_cli::main()
}
