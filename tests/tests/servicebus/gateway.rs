//! Runs tests of this program through the gateway, which stands between them and a namespace. Here an
//! emulator is the namespace.

use std::process::Command;

/// The shortest of the tests that plant each kind of fault, end links in each way, move the clock and look at
/// links.
const SAMPLE: [&str; 4] =
    ["faults::", "dead_letters::a_lost_answer", "push::credit_ends", "session_losses::a_session_"];

/// Tests that they leave out: those of a namespace, and those of tokens, whose lives take their true time.
const SKIPPED: [&str; 4] = ["--skip", "namespace::", "--skip", "token"];

#[test]
fn faults_strike_through_the_gateway_as_on_the_emulator() {
    if std::env::var_os("JOBQUEUE_TEST_SERVICEBUS").is_some() {
        // All tests run through it already.
        return;
    }
    let mut tests = Command::new(std::env::current_exe().unwrap());
    let output = tests.args(SAMPLE).args(SKIPPED).env("JOBQUEUE_TEST_SERVICEBUS", "emulator").output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(!text.contains("running 0 tests"), "{text}");
}
