//! The emulator of Service Bus does what stock clients expect, and ends together with the program that
//! started it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
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

/// Runs the checks of a client, each group on an emulator of its own, because the checks move its clock. All
/// run at once, because the clients mostly wait.
fn run(groups: &[&str], command: impl Fn(&ServiceBus, &str) -> Command) {
    run_on(|| ServiceBus::emulator(&[]), groups, command);
}

fn run_on(start: fn() -> ServiceBus, groups: &[&str], command: impl Fn(&ServiceBus, &str) -> Command) {
    let running = groups.iter().map(|&group| {
        let emulator = start();
        let checks = command(&emulator, group).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        (group, checks, emulator)
    });
    for (group, checks, emulator) in running.collect::<Vec<_>>() {
        let output = checks.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        println!("{group}:\n{text}");
        let log = (String::from_utf8_lossy(&output.stderr), emulator.log_tail());
        assert!(
            output.status.success(),
            "{group} failed:\n{text}\n{}\nthe emulator's log:\n{}",
            log.0,
            log.1
        );
        assert!(text.contains("ok "), "{group} has no checks");
    }
}

#[test]
fn stock_python_client_finds_every_feature() {
    let folder = servicebus::source().join("clients/python");
    let interpreter = python::environment("servicebus-python", &folder.join("requirements.txt"));
    let interpreter = interpreter.unwrap_or_else(|error| panic!("{error}"));
    run(&["deliveries", "times", "sessions", "settings", "tls", "faults"], |emulator, group| {
        let mut checks = Command::new(&interpreter);
        checks.arg(folder.join("run.py")).arg(emulator.ready().to_string()).arg(emulator.certificate_path());
        checks.arg(group).env("PYTHONDONTWRITEBYTECODE", "1");
        checks
    });
}

#[test]
fn stock_javascript_client_finds_every_feature() {
    let groups = ["deliveries", "times", "sessions", "settings", "transactions", "links", "faults"];
    run(&groups, javascript);
}

fn javascript(emulator: &ServiceBus, group: &str) -> Command {
    let mut checks = Command::new("node");
    checks.arg(servicebus::source().join("clients/js/run.js")).arg(emulator.ready().to_string()).arg(group);
    checks.env("NODE_PATH", servicebus::packages()).env("NODE_EXTRA_CA_CERTS", emulator.certificate_path());
    checks
}

#[test]
fn stock_javascript_client_finds_the_same_through_the_gateway() {
    let groups = ["deliveries", "times", "sessions", "settings", "transactions", "links", "faults"];
    run_on(|| ServiceBus::behind_gateway(&[]), &groups, javascript);
}

#[test]
fn queues_and_faults_are_controlled_from_rust() {
    let emulator = ServiceBus::emulator(&[]);
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
#[should_panic(expected = "The Basic tier has neither sessions nor duplicate detection")]
fn the_basic_tier_refuses_sessions() {
    let emulator = ServiceBus::emulator(&["--sku", "Basic"]);
    emulator.create_queue("plain", json!({}));
    emulator.create_queue("sessions", json!({ "RequiresSession": true }));
}

#[test]
fn a_stopped_process_is_silent_until_it_continues() {
    let emulator = ServiceBus::emulator(&[]);
    let mut client = TcpStream::connect(("127.0.0.1", emulator.port())).unwrap();
    emulator.stop_process();
    client.write_all(b"AMQP\x03\x01\x00\x00").unwrap();
    client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut answer = [0; 8];
    client.read_exact(&mut answer).unwrap_err();
    emulator.continue_process();
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"AMQP\x03\x01\x00\x00");
}

#[test]
fn dropping_it_stops_it() {
    let emulator = ServiceBus::emulator(&[]);
    let port = emulator.port();
    assert!(answers(port) && answers(emulator.tls_port()));
    drop(emulator);
    assert!(!answers(port));
}

#[test]
fn a_killed_program_leaves_no_emulator_behind() {
    if std::env::var_os(VICTIM).is_some() {
        let emulator = ServiceBus::emulator(&[]);
        println!("at port {}.", emulator.port());
        std::thread::sleep(Duration::from_secs(600));
        return;
    }
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["emulator::a_killed_program_leaves_no_emulator_behind", "--exact", "--nocapture"])
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
