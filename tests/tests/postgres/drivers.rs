//! The transactions of other drivers than `tokio-postgres`.

use std::path::Path;
use std::process::Command;

use jobqueue_test_support::postgres::Postgres;
use jobqueue_test_support::target_folder;

/// The tests are a workspace of their own, `examples/drivers`, since sqlx bounds the version of SQLite.
// I19, Q1, Q2
#[test]
fn jobs_are_sent_and_completed_in_transactions_of_sqlx_and_diesel() {
    let run = Command::new(env!("CARGO"))
        .args(["test", "--quiet", "--locked"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/drivers"))
        .env("CARGO_TARGET_DIR", target_folder().join("drivers"))
        .env("JOBQUEUE_POSTGRES", Postgres::shared().connection_string())
        .output()
        .unwrap();
    let text = [run.stdout, run.stderr].concat();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&text));
}
