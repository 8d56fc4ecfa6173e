//! The JSON documents for programs: waiting jobs, groups, batches, leaders and operations.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use jobqueue::Storage;
use serde_json::Value;

use super::changes::{ended, operation, previewed};
use super::support::{Browser, Mail, filled, operate, reject_all};
use crate::Dashboard;
use crate::browser::text::encoded;

async fn read(browser: &Browser, path: &str) -> Value {
    let answer = browser.get(path).await;
    assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text);
    assert_eq!(answer.headers["content-type"], "application/json", "{path}");
    serde_json::from_str(&answer.text).unwrap()
}

fn mail() -> Mail {
    Mail { to: "bob@example.org".to_owned() }
}

/// Returns a storage with two jobs of the key `ada` in order, a third one, and a delayed one.
async fn waiting() -> Storage {
    let storage = Storage::memory();
    let mails = storage.queue::<Mail>().await.unwrap();
    for id in ["first", "second"] {
        let _ = mails.send(&mail()).id(id).key("ada").in_order().await.unwrap();
    }
    let _ = mails.send(&mail()).id("third").await.unwrap();
    let _ = mails.send(&mail()).id("later").delay(Duration::from_secs(3_600)).await.unwrap();
    storage
}

#[tokio::test]
async fn jobs_of_a_state_are_read_page_by_page() {
    let browser = Browser::operating(&waiting().await);
    let (mut ids, mut from) = (Vec::new(), String::new());
    loop {
        let page = read(&browser, &format!("/api/jobs?queue=mails&limit=1{from}")).await;
        let jobs = page["jobs"].as_array().unwrap();
        ids.extend(jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        from = format!("&from={}", encoded(next));
    }
    ids.sort();
    assert_eq!(ids, ["first", "second", "third"]);
    let delayed = read(&browser, "/api/jobs?queue=mails&state=delayed").await;
    assert_eq!(delayed["jobs"][0]["id"], "later", "{delayed}");
    let of_key = read(&browser, "/api/jobs?queue=mails&state=waiting&key=ada").await;
    assert_eq!(of_key["jobs"].as_array().unwrap().len(), 2, "{of_key}");
    let next = read(&browser, "/api/peek?queue=mails").await;
    assert!(next.as_array().is_some_and(|jobs| !jobs.is_empty()), "{next}");
    for query in ["state=dead", "state=Waiting", "limit=0", "limit=1001", "knd=mail"] {
        let answer = browser.get(&format!("/api/jobs?queue=mails&{query}")).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{query}: {}", answer.text);
    }
}

#[tokio::test]
async fn groups_batches_and_leaders_have_documents() {
    let storage = waiting().await;
    let mut batch = storage.batch("import").await.unwrap();
    batch.send_all([mail()]).await.unwrap();
    batch.then(&mail()).await.unwrap();
    let browser = Browser::operating(&storage);
    let groups = read(&browser, "/api/groups?queue=mails").await;
    assert_eq!(groups["groups"][0]["key"], "ada", "{groups}");
    assert_eq!(groups["groups"][0]["entries"].as_array().unwrap().len(), 2, "{groups}");
    let batch = read(&browser, "/api/batch?id=import").await;
    assert_eq!(batch["open"][0]["job"], "import/0", "{batch}");
    assert_eq!(browser.get("/api/batch?id=none").await.status, StatusCode::NOT_FOUND);
    assert!(read(&browser, "/api/leaders").await.is_array());
}

#[tokio::test]
async fn operation_has_a_document_with_its_report_and_its_outcome() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    let preview = previewed(&browser, &[("queue", "mails"), ("reason", "rejected")]).await;
    let plan = operation(&preview);
    let found = read(&browser, &format!("/api/operation?id={plan}")).await;
    assert_eq!(found["verb"], "preview", "{found}");
    assert_eq!(found["filter"]["reason"], "rejected", "{found}");
    assert_eq!(found["report"]["jobs"][0]["id"], "dead", "{found}");
    assert!(found["outcome"].is_null(), "{found}");
    let redrive = browser.post("/do/redrive", &[("plan", plan), ("rate", "5")]).await;
    ended(&browser, redrive.location()).await;
    reject_all(&storage).await;
    let done = read(&browser, &format!("/api/operation?id={}", operation(&redrive))).await;
    assert_eq!(done["operator"], "ada", "{done}");
    assert_eq!(done["per_second"], 5, "{done}");
    assert_eq!(done["ended"], true, "{done}");
    assert_eq!(done["report"]["count"], 1, "{done}");
    assert_eq!(done["report"]["more_jobs"], 0, "{done}");
    assert!(done["outcome"].is_object() && done["outcome_problem"].is_null(), "{done}");
    assert_eq!(browser.get("/api/operation?id=none").await.status, StatusCode::NOT_FOUND);
}

/// Waits until an operation has ended, and returns its document.
async fn reported(browser: &Browser, id: &str) -> Value {
    let started = Instant::now();
    loop {
        let operation = read(browser, &format!("/api/operation?id={id}")).await;
        if operation["ended"] == true {
            return operation;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{operation}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn operation_on_jobs_has_a_document_with_its_report() {
    let browser = Browser::operating(&waiting().await);
    let preview = browser.post("/do/preview-jobs", &[("queue", "mails"), ("key", "ada")]).await;
    let plan = operation(&preview);
    let found = reported(&browser, plan).await;
    assert_eq!(found["verb"], "preview", "{found}");
    assert_eq!(found["objects"], "jobs", "{found}");
    assert_eq!(found["filter"]["key"], "ada", "{found}");
    assert_eq!(found["report"]["count"], 2, "{found}");
    let run = browser.post("/do/run-now", &[("plan", plan)]).await;
    let due = reported(&browser, operation(&run)).await;
    assert_eq!(due["verb"], "run_now", "{due}");
    assert_eq!(due["report"]["unchanged"], 2, "{due}");
    let cancel = browser.post("/do/cancel", &[("plan", plan)]).await;
    let cancelled = reported(&browser, operation(&cancel)).await;
    assert_eq!(cancelled["verb"], "cancellation", "{cancelled}");
    assert_eq!(cancelled["report"]["jobs"].as_array().unwrap().len(), 2, "{cancelled}");
    assert_eq!(cancelled["report"]["workers"], 0, "{cancelled}");
}

// A hook applies to pages only, so a document would show what the hook hides.
#[tokio::test]
async fn documents_with_texts_of_jobs_are_refused_where_texts_are_hidden() {
    let browser = Browser::new(Dashboard::new(operate(&waiting().await)).redact(|_| None));
    for path in [
        "/api/peek?queue=mails",
        "/api/jobs?queue=mails",
        "/api/groups?queue=mails",
        "/api/batch?id=none",
        "/api/operation?id=none",
    ] {
        assert_eq!(browser.get(path).await.status, StatusCode::FORBIDDEN, "{path}");
    }
    assert_eq!(browser.get("/api/leaders").await.status, StatusCode::OK);
}
