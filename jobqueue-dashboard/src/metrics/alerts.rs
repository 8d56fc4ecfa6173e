//! The alert rules for Prometheus, made from the list of metrics.

use std::fmt::Write as _;

use super::list::{self, Metric};

/// An alert. In an expression `{}` is the name of the series.
struct Alert {
    name: &'static str,
    metric: Metric,
    expression: &'static str,
    lasting: &'static str,
    severity: &'static str,
    summary: &'static str,
    action: &'static str,
}

const ALERTS: &[Alert] = &[
    Alert {
        name: "JobqueueWaitsTooLong",
        metric: list::OLDEST,
        expression: "{} > 900",
        lasting: "5m",
        severity: "warning",
        summary: "The oldest job of the queue {{ $labels.queue }} has waited for more than 15 minutes",
        action: "jobqueue queue show {{ $labels.queue }}; jobqueue workers",
    },
    Alert {
        name: "JobqueueNoWorker",
        metric: list::WORKERS,
        expression: "{} == 0 and on (queue) jobqueue_queue_waiting > 0",
        lasting: "10m",
        severity: "critical",
        summary: "Jobs wait in the queue {{ $labels.queue }}, and no worker listens to it",
        action: "Start a worker. If it scales from zero, see whether the autoscaler gets an answer from /scale",
    },
    Alert {
        name: "JobqueueDeadLetters",
        metric: list::DELIVERIES,
        expression: r#"sum by (queue) (increase({}{outcome="dead_lettered"}[15m])) > 0"#,
        lasting: "0m",
        severity: "warning",
        summary: "Jobs of the queue {{ $labels.queue }} became dead letters",
        action: "jobqueue dead list {{ $labels.queue }}",
    },
    Alert {
        name: "JobqueueCircuitOpen",
        metric: list::CIRCUITS,
        expression: "{} > 0",
        lasting: "5m",
        severity: "critical",
        summary: "Every job of the queue {{ $labels.queue }} fails; workers have paused fetching",
        action: "Look for an outage of what the handlers need",
    },
    Alert {
        name: "JobqueueMostAttemptsFail",
        metric: list::DELIVERIES,
        expression: r#"sum by (queue) (rate({}{outcome="retried"}[15m])) > sum by (queue) (rate({}{outcome="completed"}[15m]))"#,
        lasting: "15m",
        severity: "warning",
        summary: "More attempts of the queue {{ $labels.queue }} fail than jobs complete",
        action: "jobqueue peek {{ $labels.queue }} shows the last errors",
    },
    Alert {
        name: "JobqueueWorkerGone",
        metric: list::PRESENT,
        expression: r#"delta({}{state="stale"}[15m]) > 0"#,
        lasting: "0m",
        severity: "info",
        summary: "A worker has gone without a word",
        action: "Its jobs run elsewhere when their leases are over; look for a crash or a killed process",
    },
    Alert {
        name: "JobqueuePausedForLong",
        metric: list::PAUSED,
        expression: "{} == 1",
        lasting: "1d",
        severity: "info",
        summary: "The queue {{ $labels.queue }} has been paused for a day",
        action: "jobqueue queue resume {{ $labels.queue }}",
    },
    Alert {
        name: "JobqueueStorageUnreadable",
        metric: list::SCRAPE_SUCCESS,
        expression: "{} == 0",
        lasting: "5m",
        severity: "critical",
        summary: "The storage cannot be read",
        action: "jobqueue doctor",
    },
    Alert {
        name: "JobqueueQueueUnreadable",
        metric: list::READABLE,
        expression: "{} == 0",
        lasting: "5m",
        severity: "warning",
        summary: "The queue {{ $labels.queue }} cannot be read",
        action: "jobqueue queue show {{ $labels.queue }}",
    },
];

/// Returns the alert rules, as a rule file for Prometheus.
pub fn alert_rules() -> String {
    let mut text = String::from(
        "# Alert rules for jobqueue. Made from the list of metrics: change `jobqueue-dashboard/src/metrics/alerts.rs`.\n\
         groups:\n  - name: jobqueue\n    rules:\n",
    );
    for alert in ALERTS {
        let expression = quoted(&alert.expression.replace("{}", &alert.metric.series()));
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "      - alert: {}\n        expr: {expression}\n        for: {}\n        labels:\n          severity: {}\n        \
             annotations:\n          summary: {}\n          action: {}\n",
            alert.name,
            alert.lasting,
            alert.severity,
            quoted(alert.summary),
            quoted(alert.action),
        );
    }
    text
}

/// Returns a text as YAML writes it between single quotes.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
