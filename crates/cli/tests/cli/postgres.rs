//! The program on PostgreSQL.

use jobqueue_test_support::postgres::Postgres;

use crate::support::{Sandbox, error_text};

/// A command that reads creates no tables in a mistyped database, but `queue create` does. `doctor` reports
/// problems of the server's settings, and no costs of requests.
#[test]
fn doctor_reads_an_existing_database_and_reports_its_settings() {
    let mut sandbox = Sandbox::new();
    sandbox.storage = Postgres::shared().connection_string();
    for _ in 0..2 {
        let refused = sandbox.run(&["queues"]);
        assert!(!refused.status.success());
        assert!(error_text(&refused).contains("has no tables"), "{}", error_text(&refused));
    }
    sandbox.ok(&["queue", "create", "mails"]);
    let checks = sandbox.json(&["doctor"]);
    let checks = checks.as_array().unwrap();
    let advises = |check: &&serde_json::Value| check["check"] == "advice" && check["verdict"] == "warning";
    let advice: Vec<_> =
        checks.iter().filter(advises).map(|check| check["detail"].as_str().unwrap()).collect();
    assert!(advice.iter().any(|text| text.contains("`fsync` is off")), "{advice:?}");
    assert!(!checks.iter().any(|check| check["check"] == "cost"), "{checks:?}");
}
