//! Lists of jobs and of dead letters with pages, and the rows that are selected in them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use jobqueue::sharded::Sharded;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{SendOptions, Storage};
use jobqueue_admin::{AccessLevel, Action, Admin, Cancellation, JobReference, RawSend};
use jobqueue_testing::faults::{Fault, Faulty};

use super::changes::{ended, mails, operation, previewed};
use super::support::{Browser, Mail, filled, operate, reject_all, send};
use crate::Dashboard;

async fn send_later(admin: &Admin, id: &str, key: &str) {
    let later = SendOptions::new().delay(Duration::from_secs(3_600));
    let mail = RawSend::json("mail", r#"{"to":"bob@example.org"}"#).unwrap().id(id).key(key).with(later);
    admin.send("mails", mail).await.unwrap();
}

/// Returns the values of the rows that a page offers for selection.
fn rows(page: &str) -> Vec<String> {
    let values = page.split("name=\"selected\" value=\"").skip(1).filter_map(|row| row.split('"').next());
    values.map(|value| value.replace("&#38;", "&")).collect()
}

/// Returns the path of the next page.
fn next(path: &str, page: &str) -> Option<String> {
    let (_, link) = page.split_once("id=\"next\" href=\"")?;
    let query = link.split('"').next()?.replace("&#38;", "&");
    Some(format!("{}{query}", path.split('?').next()?))
}

/// Returns the rows of a list, page by page.
async fn all_rows(browser: &Browser, path: &str) -> Vec<Vec<String>> {
    let (mut pages, mut path) = (Vec::new(), path.to_owned());
    loop {
        let page = browser.page(&path).await;
        pages.push(rows(&page));
        let Some(next) = next(&path, &page) else { return pages };
        path = next;
    }
}

/// Waits for the report of an operation on jobs, and returns its page.
async fn reported(browser: &Browser, location: &str) -> String {
    let started = Instant::now();
    loop {
        let page = browser.page(location.trim_start_matches("..")).await;
        if !page.contains("Progress of the operation") {
            return page;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{page}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn jobs_are_listed_by_state_and_page() {
    let storage = filled().await;
    let admin = operate(&storage);
    for number in 0..150 {
        send_later(&admin, &format!("late-{number}"), if number < 3 { "ada" } else { "bob" }).await;
    }
    let browser = Browser::operating(&storage);
    let page = browser.page("/queues/mails/jobs").await;
    assert!(page.contains("<bdi>waiting</bdi>") && page.contains("Delayed (150)"), "{page}");
    let pages = all_rows(&browser, "/queues/mails/jobs?state=delayed").await;
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [100, 50]);
    assert_eq!(pages.concat().iter().collect::<BTreeSet<_>>().len(), 150);
    let of_ada = all_rows(&browser, "/queues/mails/jobs?state=delayed&key=ada").await;
    assert_eq!(of_ada.concat().len(), 3);
    let document = browser.get("/api/jobs?queue=mails&state=delayed").await.text;
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["jobs"].as_array().unwrap().len(), 100);
    assert!(document["next"].is_string(), "{document}");
    // The words of a state are those of the page of a job, and its name that of documents.
    let page = browser.page("/queues/mails/jobs?state=backing_off").await;
    assert!(page.contains("aria-current=\"page\">Backing off (0)"), "{page}");
    for query in ["state=dead", "state=delayed&from=nowhere"] {
        let answer = browser.get(&format!("/queues/mails/jobs?{query}")).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{query}");
    }
    let hiding = Browser::new(Dashboard::new(admin).redact(|_| None));
    assert_eq!(hiding.get("/queues/mails/jobs?key=ada").await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn delayed_job_is_run_now() {
    let storage = filled().await;
    let admin = operate(&storage);
    send_later(&admin, "late", "ada").await;
    let browser = Browser::operating(&storage);
    assert!(browser.page("/queues/mails/jobs?state=delayed").await.contains("do/run-now?queue=mails"));
    assert!(!browser.page("/queues/mails/jobs").await.contains("do/run-now"));
    assert!(browser.page("/job?queue=mails&id=late").await.contains("id=\"run-now\""));
    let night = Admin::builder(storage.clone()).access(AccessLevel::only([Action::Cancel])).build();
    let night = Browser::new(Dashboard::new(night));
    assert!(!night.page("/job?queue=mails&id=late").await.contains("run-now"));
    let fields = [("queue", "mails"), ("id", "late")];
    assert_eq!(night.post("/do/run-now", &fields).await.status, StatusCode::FORBIDDEN);
    let due = browser.post("/do/run-now", &fields).await;
    assert!(due.location().ends_with("done=due"), "{}", due.location());
    assert!(browser.page("/queues/mails/jobs").await.contains("<bdi>late</bdi>"));
    let again = browser.post("/do/run-now", &fields).await;
    assert!(again.location().ends_with("done=not-delayed"), "{}", again.location());
}

#[tokio::test]
async fn jobs_of_a_key_are_cancelled_after_a_preview() {
    let storage = filled().await;
    let admin = operate(&storage);
    for (id, key) in [("one", "ada"), ("two", "ada"), ("other", "bob")] {
        send_later(&admin, id, key).await;
    }
    let browser = Browser::operating(&storage);
    let preview = browser.post("/do/preview-jobs", &[("queue", "mails"), ("key", "ada")]).await;
    let page = reported(&browser, preview.location()).await;
    assert!(page.contains("2 jobs are selected") && page.contains("Cancel 2</button>"), "{page}");
    let state = async |id: &str| admin.cancellation(&JobReference::new("mails", id)).await.unwrap();
    assert_eq!(state("one").await, Cancellation::None);
    let cancel = browser.post("/do/cancel", &[("plan", operation(&preview))]).await;
    let page = reported(&browser, cancel.location()).await;
    assert!(page.contains("Cancellation requested for 2 jobs"), "{page}");
    for id in ["one", "two"] {
        assert!(matches!(state(id).await, Cancellation::Requested { .. }), "{id}");
    }
    assert_eq!(state("other").await, Cancellation::None);
    // Neither a missing condition nor the preview of other things selects jobs.
    let letters = previewed(&browser, &[("queue", "mails")]).await;
    for (path, fields) in [
        ("/do/preview-jobs", [("queue", "mails"), ("key", "")]),
        ("/do/preview-selected-jobs", [("queue", "mails"), ("selected", "")]),
        ("/do/cancel", [("plan", operation(&letters)), ("id", "")]),
        ("/do/run-now", [("plan", operation(&cancel)), ("id", "")]),
        ("/do/redrive", [("plan", operation(&preview)), ("id", "")]),
    ] {
        assert_eq!(browser.post(path, &fields).await.status, StatusCode::BAD_REQUEST, "{path}");
    }
}

// Cancellations of messages that no worker receives were offered.
#[tokio::test]
async fn dead_letter_queue_has_no_lists_of_jobs() {
    let browser = Browser::operating(&filled().await);
    let page = browser.page("/queues/mails-poison").await;
    assert!(!page.contains("id=\"jobs\""), "{page}");
    let list = browser.get("/queues/mails-poison/jobs").await;
    assert_eq!(list.status, StatusCode::BAD_REQUEST, "{}", list.text);
    // The page and the document refused it in other words.
    let document = browser.get("/api/explain?queue=mails-poison").await;
    for refused in [&list, &document] {
        assert!(refused.text.contains("has the dead letters of"), "{}", refused.text);
    }
    for (path, field) in [
        ("/do/preview-jobs", ("kind", "mail")),
        ("/do/preview-selected-jobs", ("selected", "queue=mails-poison&id=dead")),
    ] {
        let refused = browser.post(path, &[("queue", "mails-poison"), field]).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{path}: {}", refused.text);
    }
}

#[tokio::test]
async fn page_of_a_batch_finds_its_jobs() {
    let storage = Storage::memory();
    let mut batch = storage.batch("import").await.unwrap();
    batch.send(&Mail { to: "bob@example.org".to_owned() }).await.unwrap();
    send(&operate(&storage), "other").await;
    let browser = Browser::operating(&storage);
    let page = browser.page("/batch?id=import").await;
    assert!(page.contains("do/preview-jobs") && page.contains("name=\"batch\" value=\"import\""), "{page}");
    let preview = browser.post("/do/preview-jobs", &[("queue", "mails"), ("batch", "import")]).await;
    let page = reported(&browser, preview.location()).await;
    assert!(page.contains("1 job is selected") && page.contains("import/0"), "{page}");
}

#[tokio::test]
async fn selected_jobs_are_run_now_and_no_others() {
    let storage = filled().await;
    let admin = operate(&storage);
    for id in ["a&b=c", "line\r\nbreak", "other"] {
        send_later(&admin, id, "ada").await;
    }
    let browser = Browser::operating(&storage);
    let rows = rows(&browser.page("/queues/mails/jobs?state=delayed").await);
    assert_eq!(rows.len(), 3);
    let selected = rows.iter().filter(|row| !row.contains("other"));
    let fields: Vec<_> = selected.map(|row| ("selected", row.as_str())).collect();
    let fields = [&[("queue", "mails")], &fields[..]].concat();
    let preview = browser.post("/do/preview-selected-jobs", &fields).await;
    let page = reported(&browser, preview.location()).await;
    assert!(page.contains("2 jobs are selected") && page.contains("Run 2 now"), "{page}");
    let run = browser.post("/do/run-now", &[("plan", operation(&preview))]).await;
    let page = reported(&browser, run.location()).await;
    assert!(page.contains("2 due now</strong>, 0 did not wait"), "{page}");
    let states = mails(&storage).await.states.unwrap();
    assert_eq!(states.waiting, 3);
    assert_eq!(states.delayed, 1);
}

#[tokio::test]
async fn selected_dead_letters_are_purged_and_no_others() {
    let storage = filled().await;
    let admin = operate(&storage);
    send(&admin, "second").await;
    reject_all(&storage).await;
    let browser = Browser::operating(&storage);
    let rows = rows(&browser.page("/queues/mails/dead").await);
    // The jobs `dead`, `waiting` and `second`.
    assert_eq!(rows.len(), 3);
    // A job dies again after the page was loaded.
    send(&admin, "second").await;
    reject_all(&storage).await;
    let selected = rows.iter().filter(|row| !row.contains("id=dead"));
    let fields: Vec<_> = selected.map(|row| ("selected", row.as_str())).collect();
    let fields = [&[("queue", "mails")], &fields[..]].concat();
    let preview = browser.post("/do/preview-selected", &fields).await;
    let page = ended(&browser, preview.location()).await;
    assert!(page.contains("2 selected.") && page.contains("2 match"), "{page}");
    let purge = browser.post("/do/purge", &[("plan", operation(&preview)), ("confirm", "mails")]).await;
    assert!(ended(&browser, purge.location()).await.contains("2 deleted"));
    assert_eq!(mails(&storage).await.dead_letters, Some(2));
    for selected in ["", "id=dead", "queue=mails&id=dead&kind=mail"] {
        let fields = [("queue", "mails"), ("selected", selected)];
        let refused = browser.post("/do/preview-selected", &fields).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{selected}");
    }
}

// newcomers 33, c 5: the page ended after 1,000 letters, of which none matched.
#[tokio::test]
async fn first_page_of_a_filter_is_not_empty_if_it_matches_behind_the_first_letters() {
    let storage = filled().await;
    let admin = operate(&storage);
    for number in 0..1_200 {
        send(&admin, &format!("more-{number}")).await;
    }
    reject_all(&storage).await;
    let (browser, path) = (Browser::operating(&storage), "/queues/mails/dead?text=more-1199");
    assert_eq!(all_rows(&browser, path).await[0].len(), 1);
    assert!(!browser.page(path).await.contains("id=\"stream\""), "each refresh would examine all of them");
}

#[tokio::test]
async fn dead_letters_behind_the_first_are_on_the_next_page() {
    let storage = filled().await;
    let admin = operate(&storage);
    for number in 0..38 {
        send(&admin, &format!("more-{number}")).await;
    }
    reject_all(&storage).await;
    let browser = Browser::operating(&storage);
    let pages = all_rows(&browser, "/queues/mails/dead").await;
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [32, 8]);
    assert_eq!(pages.concat().iter().collect::<BTreeSet<_>>().len(), 40);
    let first = browser.page("/queues/mails/dead").await;
    assert!(first.contains("There may be more than listed") && !first.contains("id=\"first\""), "{first}");
    let last = browser.page(&next("/queues/mails/dead", &first).unwrap()).await;
    assert!(!last.contains("There may be more than listed"), "{last}");
    // newcomers 33, c 4: no group is shown while all listed ones have one error.
    assert!(first.contains("with other errors. A preview counts all of them by error."), "{first}");
    assert!(last.contains("id=\"first\" href=\"../../queues/mails/dead\""), "{last}");
    let of_one = all_rows(&browser, "/queues/mails/dead?text=bob&kind=mail").await;
    assert_eq!(of_one.iter().map(Vec::len).collect::<Vec<_>>(), [40]);
    assert_eq!(browser.get("/queues/mails/dead?from=nowhere").await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn redrive_takes_only_the_first_of_its_plan() {
    let storage = filled().await;
    for number in 0..4 {
        send(&operate(&storage), &format!("more-{number}")).await;
    }
    reject_all(&storage).await;
    let browser = Browser::operating(&storage);
    let preview = previewed(&browser, &[("queue", "mails")]).await;
    let redrive = async |limit: &str| {
        browser.post("/do/redrive", &[("plan", operation(&preview)), ("limit", limit)]).await
    };
    assert_eq!(redrive("0").await.status, StatusCode::BAD_REQUEST);
    let page = ended(&browser, redrive("2").await.location()).await;
    assert!(page.contains("2 put back") && page.contains("Only the first 2."), "{page}");
    assert_eq!(mails(&storage).await.dead_letters, Some(4));
    assert!(ended(&browser, redrive("").await.location()).await.contains("4 put back"));
}

#[tokio::test]
async fn lists_say_what_the_storage_does_not_show() {
    let sharded = Sharded::builder().account("a", Storage::memory()).build().unwrap();
    let storage = Storage::from(sharded.stores());
    let admin = operate(&storage);
    admin.create_queue("mails").await.unwrap();
    send(&admin, "shown").await;
    send_later(&admin, "late", "ada").await;
    let browser = Browser::operating(&storage);
    let page = browser.page("/queues/mails/jobs").await;
    assert!(
        page.contains("shows only the first 32 visible jobs") && page.contains("<bdi>shown</bdi>"),
        "{page}"
    );
    assert!(!browser.page("/queues/mails/jobs?kind=other").await.contains("<bdi>shown</bdi>"));
    let page = browser.page("/queues/mails/jobs?state=delayed").await;
    assert!(!page.contains("There is no such job") && !page.contains("do/run-now"), "{page}");
}

// Each refresh of a list without jobs paid for a peek.
#[tokio::test(start_paused = true)]
async fn list_that_the_storage_does_not_show_costs_no_peek() {
    let sharded = Sharded::builder().account("a", Storage::memory()).build().unwrap();
    let storage = Storage::from(sharded.stores());
    operate(&storage).create_queue("mails").await.unwrap();
    let faulty = Faulty::quiet(&storage);
    let browser = Browser::operating(&faulty.storage());
    browser.page("/").await;
    faulty.plan_always(Operation::Peek, Fault::Refuse(StoreErrorKind::Unavailable));
    for state in ["delayed", "backing_off", "running"] {
        browser.page(&format!("/queues/mails/jobs?state={state}")).await;
    }
    let waiting = browser.get("/queues/mails/jobs").await;
    assert_eq!(waiting.status, StatusCode::SERVICE_UNAVAILABLE, "{}", waiting.text);
}
