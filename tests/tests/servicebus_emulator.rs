//! The emulator of Service Bus does what stock clients expect, and ends with the program that started it.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use jobqueue_test_support::python;
use jobqueue_test_support::servicebus::{self, ServiceBus};
use serde_json::json;

/// Set for the program that is killed.
const VICTIM: &str = "JOBQUEUE_TESTS_VICTIM";

fn answers(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// Runs the checks of a client and shows what they say.
fn run(mut checks: Command) {
    let output = checks.stderr(Stdio::inherit()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "{checks:?} failed:\n{text}");
}

#[test]
fn stock_python_client_finds_every_feature() {
    let emulator = ServiceBus::start();
    let folder = servicebus::source().join("clients/python");
    let interpreter = python::environment("servicebus-python", &folder.join("requirements.txt"));
    let mut checks = Command::new(interpreter.unwrap_or_else(|error| panic!("{error}")));
    checks.arg(folder.join("run.py")).arg(emulator.ready().to_string()).arg(emulator.certificate_path());
    checks.env("PYTHONDONTWRITEBYTECODE", "1");
    run(checks);
}

#[test]
fn stock_javascript_client_finds_every_feature() {
    let emulator = ServiceBus::start();
    let mut checks = Command::new("node");
    checks.arg(servicebus::source().join("clients/js/run.js")).arg(emulator.ready().to_string());
    checks.env("NODE_PATH", servicebus::packages()).env("NODE_EXTRA_CA_CERTS", emulator.certificate_path());
    run(checks);
}

#[test]
fn queues_and_faults_are_controlled_from_rust() {
    let emulator = ServiceBus::start();
    emulator.create_queue("q", json!({ "LockDuration": "PT0.1S", "MaxDeliveryCount": 3 }));
    let shown = emulator.queue("q");
    assert_eq!(shown["settings"]["LockDuration"], "PT0.1S");
    assert_eq!(shown["settings"]["MaxDeliveryCount"], "3");
    assert_eq!(shown["counts"]["active"], 0);
    let fault = emulator.plant_with("connect", "abort", json!({ "times": 2 }));
    for expected in 1..=2 {
        let _refused = TcpStream::connect(("127.0.0.1", emulator.port())).unwrap();
        assert_eq!(fault.wait(expected), expected);
    }
    fault.remove();
    assert_eq!(emulator.strike("abort", None), 0);
    assert_eq!(emulator.links(), json!([]));
    emulator.advance(Duration::from_secs(60));
}

#[test]
fn dropping_it_stops_it() {
    let emulator = ServiceBus::start();
    let port = emulator.port();
    assert!(answers(port) && answers(emulator.tls_port()));
    drop(emulator);
    assert!(!answers(port));
}

#[test]
fn a_killed_program_leaves_no_emulator_behind() {
    if std::env::var_os(VICTIM).is_some() {
        let emulator = ServiceBus::start();
        println!("at port {}.", emulator.port());
        std::thread::sleep(Duration::from_secs(600));
        return;
    }
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["a_killed_program_leaves_no_emulator_behind", "--exact", "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines().map_while(Result::ok);
    let port = lines.find_map(|line| line.split_once("at port ")?.1.trim_end_matches('.').parse().ok());
    let port = port.unwrap();
    assert!(answers(port));
    // SIGKILL: no destructor runs.
    victim.kill().unwrap();
    victim.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while answers(port) {
        assert!(Instant::now() < deadline, "the emulator outlives its test program");
        std::thread::sleep(Duration::from_millis(20));
    }
}
