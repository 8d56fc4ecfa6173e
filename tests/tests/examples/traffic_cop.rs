//! The example `traffic_cop`: control moves to another process when its holder is killed.

use std::process::{Command, Stdio};
use std::time::Duration;

use jobqueue_tests::example;

const LEASE: Duration = Duration::from_secs(15);
/// The poll interval of the example: a sixth of the lease, with a jitter of one fifth.
const POLL: Duration = Duration::from_secs(3);
/// The margin for a busy machine that starts and schedules late.
const ALLOWANCE: Duration = Duration::from_secs(5);

// F83
#[test]
fn another_process_takes_over_within_lease_and_poll() {
    let folder = tempfile::tempdir().expect("a folder");
    let storage = format!("sqlite:{}", folder.path().join("cop.db").display());
    let run = Command::new(example::built("traffic_cop"))
        .args(["--instances", "3", "--lease", "15", "--kill-after", "3", "--duration", "28"])
        .args(["--storage", &storage])
        .stdin(Stdio::null())
        .output()
        .expect("the example starts");
    let said = example::text(&run);
    assert!(run.status.success(), "{said}");

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

/// Parses a line such as `instance 2: in control (term 7)`.
fn in_control(line: &str) -> Option<(&str, u64)> {
    let (instance, term) = line.split_once(": in control (term ")?;
    Some((instance, term.strip_suffix(')')?.parse().ok()?))
}
