//! The example `traffic_cop`: control moves to another process when the one that has it is killed.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(15);
/// Of the example: a sixth of the lease, give or take a fifth.
const POLL: Duration = Duration::from_secs(3);
/// A machine that does other things starts and schedules late.
const ALLOWANCE: Duration = Duration::from_secs(5);

fn built() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "-p", "jobqueue-examples", "--example", "traffic_cop"]);
    assert!(build.status().expect("cargo runs").success(), "the example does not build");
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test.parent().and_then(|deps| deps.parent()).expect("a target folder");
    profile.join("examples").join(format!("traffic_cop{}", std::env::consts::EXE_SUFFIX))
}

#[test]
fn f83_another_process_takes_over_within_the_lease_and_a_poll() {
    let folder = tempfile::tempdir().expect("a folder");
    let storage = format!("sqlite:{}", folder.path().join("cop.db").display());
    let run = Command::new(built())
        .args(["--instances", "3", "--lease", "15", "--kill-after", "3", "--duration", "28"])
        .args(["--storage", &storage])
        .stdin(Stdio::null())
        .output()
        .expect("the example starts");
    let (said, wrong) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{said}{wrong}");

    let led: Vec<(&str, u64)> = said.lines().filter_map(in_control).collect();
    let &[(first, term), (second, next), ..] = led.as_slice() else {
        panic!("control did not move:\n{said}")
    };
    assert_ne!(first, second, "the killed one leads:\n{said}");
    assert!(next > term, "the term did not grow:\n{said}");
    assert!(led.windows(2).all(|pair| pair[0].1 < pair[1].1), "terms do not grow:\n{said}");
    assert!(
        said.contains(&format!("{first}: killed")) && said.contains(&format!("{second}: lost control")),
        "{said}"
    );

    let moved = said.lines().find(|line| line.starts_with("control moved")).expect("a take-over time");
    let seconds = moved.split_whitespace().rev().nth(1).and_then(|text| text.parse().ok());
    let took = Duration::from_secs_f64(seconds.expect("seconds"));
    println!("{moved} (lease {LEASE:?}, poll at most {POLL:?})");
    assert!(took <= LEASE + POLL + ALLOWANCE, "{moved}");
}

/// `instance 2: in control (term 7)`.
fn in_control(line: &str) -> Option<(&str, u64)> {
    let (instance, term) = line.split_once(": in control (term ")?;
    Some((instance, term.strip_suffix(')')?.parse().ok()?))
}
