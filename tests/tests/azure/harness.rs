//! The promise of the harness: however a test program ends, it leaves neither a running Azurite nor stored
//! data behind.

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use jobqueue_tests::azurite::Azurite;

/// Set for the program that is killed.
const VICTIM: &str = "JOBQUEUE_TESTS_VICTIM";

fn answers(address: &str) -> bool {
    TcpStream::connect(address).is_ok()
}

fn address(endpoint: &str) -> String {
    let url = url::Url::parse(endpoint).unwrap();
    format!("{}:{}", url.host_str().unwrap(), url.port().unwrap())
}

#[test]
fn a_killed_program_leaves_nothing_behind() {
    if std::env::var_os(VICTIM).is_some() {
        let azurite = Azurite::start();
        println!("at {}", address(azurite.queue_endpoint()));
        std::thread::sleep(Duration::from_secs(600));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let is_empty = || std::fs::read_dir(folder.path()).unwrap().next().is_none();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["harness::a_killed_program_leaves_nothing_behind", "--exact", "--nocapture"])
        .env(VICTIM, "1")
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines().map_while(Result::ok);
    // The test runner writes the name of the test before it, without a line break.
    let address =
        lines.into_iter().find_map(|line| line.split_once("at 127").map(|(_, rest)| format!("127{rest}")));
    let address = address.expect("an address");
    assert!(answers(&address) && !is_empty());
    // SIGKILL: no destructor runs.
    victim.kill().unwrap();
    victim.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while answers(&address) {
        assert!(Instant::now() < deadline, "Azurite at {address} outlives its test program");
        std::thread::sleep(Duration::from_millis(20));
    }
    while !is_empty() {
        assert!(Instant::now() < deadline, "what Azurite has stored outlives it");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn dropping_it_stops_it() {
    let azurite = Azurite::start();
    let address = address(azurite.queue_endpoint());
    assert!(answers(&address));
    drop(azurite);
    assert!(!answers(&address));
}
