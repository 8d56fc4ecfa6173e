//! Python programs with the stock package.

use std::process::Command;

use jobqueue_test_support::{python, servicebus};

/// Runs a program, with a connection string and further arguments; returns its output.
pub(super) fn run(connection: &str, program: &str, arguments: &[&str]) -> String {
    let list = servicebus::source().join("clients/python/requirements.txt");
    let interpreter =
        python::environment("servicebus-python", &list).unwrap_or_else(|error| panic!("{error}"));
    let output =
        Command::new(interpreter).args(["-c", program, connection]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
