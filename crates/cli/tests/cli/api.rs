//! The documents of the dashboard have the definitions of the schema.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::coordination::with;
use crate::serve::Served;
use crate::shape::check;
use crate::support::{Mail, Sandbox};

/// Returns the document at a path of the dashboard.
fn document(served: &Served, path: &str) -> Value {
    let answer = served.get(path);
    assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
}

/// Starts an operation, waits until it has ended, and returns its document.
fn operation(served: &Served, path: &str) -> Value {
    let answer = served.pause_at(path);
    assert!(answer.starts_with("HTTP/1.1 303"), "{path}: {answer}");
    let (_, rest) = answer.split_once("operations/").unwrap();
    let id = rest.split_whitespace().next().unwrap();
    let began = Instant::now();
    loop {
        let operation = document(served, &format!("/api/operation?id={id}"));
        check("operation", &operation);
        if operation["ended"] == true {
            return operation;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{operation}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn documents_of_the_dashboard_match_their_schema() {
    let sandbox = Sandbox::with_mails(2, 2);
    with(&sandbox, async |storage| {
        let mail = || Mail { to: "bob@example.org".to_owned() };
        let mut batch = storage.batch("mosaic").await.unwrap();
        batch.send_all([mail()]).await.unwrap();
        batch.then(&mail()).await.unwrap();
    });
    let served = Served::start(&sandbox, &[], &[]);
    for (definition, path) in [
        ("queue_explanation", "/api/explain?queue=mails"),
        ("jobs", "/api/peek?queue=mails"),
        ("job_page", "/api/jobs?queue=mails&limit=1"),
        ("dead_letters", "/api/dead?queue=mails"),
        ("explanation", "/api/job?queue=mails&id=dead-0"),
        ("history", "/api/history"),
        ("groups", "/api/groups?queue=mails"),
        ("schedules", "/api/schedules"),
        ("batches", "/api/batches"),
        ("batch_detail", "/api/batch?id=mosaic"),
        ("leaders", "/api/leaders"),
        ("journal_counts", "/api/throughput"),
    ] {
        check(definition, &document(&served, path));
    }
    // The form of each change names the queue.
    let preview = operation(&served, "/do/preview");
    assert_eq!(preview["report"]["count"], 2, "{preview}");
    let redrive = format!("/do/redrive?plan={}", preview["id"].as_str().unwrap());
    let redrive = operation(&served, &redrive);
    assert_eq!(redrive["outcome"]["open"], 2, "{redrive}");
    let preview = operation(&served, "/do/preview-jobs?kind=mail");
    assert_eq!(preview["objects"], "jobs", "{preview}");
    for change in ["cancel", "run-now"] {
        operation(&served, &format!("/do/{change}?plan={}", preview["id"].as_str().unwrap()));
    }
}
