//! Changes by forms, and the pages after them.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use jobqueue::{QueueName, Storage};
use jobqueue_admin::{DeadLetterFilter, QueueOverview, RawSend};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::support::{Browser, PageResponse, filled, operate, reject_all, send};
use crate::{Dashboard, Field, Shown};

pub(super) async fn mails(storage: &Storage) -> QueueOverview {
    operate(storage).queue("mails").await.unwrap()
}

/// Waits until the page of an operation shows its report, and returns the page.
pub(super) async fn ended(browser: &Browser, location: &str) -> String {
    let path = location.trim_start_matches("..");
    let started = Instant::now();
    loop {
        let page = browser.page(path).await;
        if page.contains(" looked at and left") || page.contains("It failed") {
            return page;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{page}");
        tokio::task::yield_now().await;
    }
}

/// Starts a preview of dead letters, and waits until it has ended.
pub(super) async fn previewed(browser: &Browser, fields: &[(&str, &str)]) -> PageResponse {
    let preview = browser.post("/do/preview", fields).await;
    ended(browser, preview.location()).await;
    preview
}

/// Returns the name of the operation that was started.
pub(super) fn operation(answer: &PageResponse) -> &str {
    answer.location().rsplit('/').next().unwrap()
}

#[tokio::test]
async fn paused_queue_is_shown_as_paused_at_once() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    assert!(browser.page("/").await.contains("mails"));
    let answer = browser.post("/do/pause", &[("queue", "mails")]).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER);
    assert_eq!(answer.location(), "../queues/mails?done=paused");
    assert_eq!(mails(&storage).await.paused, Some(true));
    let page = browser.page("/queues/mails").await;
    assert!(page.contains(">paused<") && page.contains("do/resume"), "{page}");
    assert_eq!(
        browser.post("/do/resume", &[("queue", "mails")]).await.location(),
        "../queues/mails?done=resumed-unserved"
    );
    assert_eq!(mails(&storage).await.paused, Some(false));
    assert_eq!(browser.post("/do/pause", &[("queue", "no-such")]).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn pause_shows_its_end_its_author_and_its_note() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    let fields = [("queue", "mails"), ("for", "2h"), ("note", "<b>the bank</b> is down")];
    assert_eq!(browser.post("/do/pause", &fields).await.location(), "../queues/mails?done=paused");
    let page = browser.page("/queues/mails").await;
    assert!(
        page.contains("&#60;b&#62;the bank&#60;/b&#62; is down") && page.contains("By <bdi>ada</bdi>"),
        "{page}"
    );
    assert!(page.contains("Until <time") && page.contains("Replace the pause"), "{page}");
    let refused = browser.post("/do/pause", &[("queue", "mails"), ("for", "soon")]).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    let others = [("queue", "mails"), ("note", "deploy")];
    assert_eq!(browser.post("/do/pause", &others).await.status, StatusCode::CONFLICT);
    let (_, shown) = page.split_once("name=\"pause\" value=\"").unwrap();
    let shown = shown.split('"').next().unwrap().replace("&#60;", "<").replace("&#62;", ">");
    let replace = [others[0], others[1], ("replace", "1"), ("pause", shown.as_str())];
    let replaced = browser.post("/do/pause", &replace).await;
    assert_eq!(replaced.location(), "../queues/mails?done=paused");
    assert_eq!(mails(&storage).await.pause.unwrap().note.as_deref(), Some("deploy"));
    // A page that shows the former pause can replace only that pause.
    let former = [others[0], ("note", "a migration"), replace[2], replace[3]];
    assert_eq!(browser.post("/do/pause", &former).await.status, StatusCode::CONFLICT);
}

#[tokio::test]
async fn dead_letters_of_one_error_are_found_and_put_back_as_a_group() {
    let storage = filled().await;
    let admin = operate(&storage);
    let broken = RawSend::json("mail", r#"{"too":"nobody"}"#).unwrap().id("broken");
    admin.send("mails", broken).await.unwrap();
    reject_all(&storage).await;
    let browser = Browser::operating(&storage);
    let page = browser.page("/queues/mails/dead").await;
    assert!(page.contains("<h2>Errors</h2>") && page.contains("no such address: bob@example.org"), "{page}");
    let errors = admin.dead_letters("mails", &DeadLetterFilter::new()).await.unwrap().errors;
    let rejected = errors.iter().find(|group| group.reason == "rejected").unwrap();
    assert!(page.contains(&format!("do/preview?error={}", rejected.fingerprint)), "{page}");
    let fields = [("queue", "mails"), ("error", rejected.fingerprint.as_str())];
    let preview = previewed(&browser, &fields).await;
    let redrive = browser.post("/do/redrive", &[("plan", operation(&preview))]).await;
    assert!(ended(&browser, redrive.location()).await.contains("2 put back"));
    let left = admin.dead_letters("mails", &DeadLetterFilter::new()).await.unwrap();
    assert_eq!(left.letters[0].id, "broken");
}

#[tokio::test]
async fn dead_letter_is_edited_and_sent_as_a_new_job() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    assert!(browser.page("/job?queue=mails&id=dead").await.contains("send?queue=mails&#38;id=dead"));
    let form = browser.page("/send?queue=mails&id=dead").await;
    assert!(form.contains("bob@example.org") && form.contains(r#"value="mail""#), "{form}");
    let fields = [("queue", "mails"), ("kind", "mail"), ("payload", r#"{"to":"ada@example.org"}"#)];
    assert_eq!(browser.post("/do/send", &fields).await.status, StatusCode::SEE_OTHER);
    let queue = mails(&storage).await;
    assert_eq!(queue.length, Some(2));
    assert_eq!(queue.dead_letters, Some(1), "the dead letter stays");
    assert_eq!(browser.get("/send?queue=mails&id=none").await.status, StatusCode::NOT_FOUND);
    let hiding = Browser::new(Dashboard::new(operate(&storage)).redact(|_| None));
    assert_eq!(hiding.get("/send?queue=mails&id=dead").await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn report_of_a_redrive_follows_its_jobs() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    let preview = previewed(&browser, &[("queue", "mails")]).await;
    let fields = [("plan", operation(&preview)), ("canary", "none")];
    assert_eq!(browser.post("/do/redrive", &fields).await.status, StatusCode::BAD_REQUEST);
    let redrive = browser.post("/do/redrive", &[("plan", operation(&preview)), ("canary", "5")]).await;
    let page = ended(&browser, redrive.location()).await;
    assert!(page.contains("0 ended, 1 wait or run, 0 died again"), "{page}");
    reject_all(&storage).await;
    // A change clears the cache that viewers share.
    browser.post("/do/resume", &[("queue", "mails")]).await;
    let page = browser.page(redrive.location().trim_start_matches("..")).await;
    assert!(page.contains("no such address: bob@example.org") && page.contains("died again"), "{page}");
}

#[tokio::test]
async fn all_dead_letters_that_match_are_counted_then_put_back() {
    let storage = filled().await;
    let admin = operate(&storage);
    for number in 0..40 {
        send(&admin, &format!("more-{number}")).await;
    }
    reject_all(&storage).await;
    let browser = Browser::operating(&storage);
    let fields = [("queue", "mails"), ("kind", "mail"), ("reason", "rejected"), ("text", "no such address")];
    let preview = browser.post("/do/preview", &fields).await;
    let page = ended(&browser, preview.location()).await;
    assert!(page.contains("42 match") && page.contains("Redrive 42") && page.contains("Purge 42"), "{page}");
    assert_eq!(mails(&storage).await.dead_letters, Some(42));
    let none = browser.post("/do/preview", &[("queue", "mails"), ("kind", "other")]).await;
    assert!(ended(&browser, none.location()).await.contains("0 match"));
    let redrive = browser.post("/do/redrive", &[("plan", operation(&preview))]).await;
    let page = ended(&browser, redrive.location()).await;
    assert!(page.contains("42 put back"), "{page}");
    let queue = mails(&storage).await;
    assert_eq!(queue.dead_letters, Some(0));
    assert_eq!(queue.length, Some(42));
}

#[tokio::test]
async fn purge_requires_the_name_of_the_queue() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    let preview = previewed(&browser, &[("queue", "mails")]).await;
    let plan = operation(&preview);
    for confirm in ["", "mail", "MAILS"] {
        let answer = browser.post("/do/purge", &[("plan", plan), ("confirm", confirm)]).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{confirm}");
    }
    assert_eq!(mails(&storage).await.dead_letters, Some(1));
    let answer = browser.post("/do/purge", &[("plan", plan), ("confirm", "mails")]).await;
    assert!(ended(&browser, answer.location()).await.contains("1 deleted"));
    assert_eq!(mails(&storage).await.dead_letters, Some(0));
}
#[tokio::test]
async fn purge_takes_only_the_letters_of_its_preview() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    let preview = previewed(&browser, &[("queue", "mails"), ("reason", "rejected")]).await;
    for number in 0..3 {
        send(&operate(&storage), &format!("newer-{number}")).await;
    }
    reject_all(&storage).await;
    assert_eq!(mails(&storage).await.dead_letters, Some(5));
    let plan = operation(&preview);
    let purge = browser.post("/do/purge", &[("plan", plan), ("confirm", "mails")]).await;
    let page = ended(&browser, purge.location()).await;
    assert!(page.contains("1 deleted"), "{page}");
    assert_eq!(mails(&storage).await.dead_letters, Some(4));
    let again = browser.post("/do/purge", &[("plan", plan), ("confirm", "mails")]).await;
    assert!(ended(&browser, again.location()).await.contains("0 deleted"));
}
#[tokio::test]
async fn change_without_a_plan_or_with_an_unknown_field_is_refused() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    let preview = previewed(&browser, &[("queue", "mails")]).await;
    let plan = ("plan", operation(&preview));
    let cases: [(&str, &[(&str, &str)]); 7] = [
        ("/do/purge", &[("queue", "mails"), ("confirm", "mails")]),
        ("/do/purge", &[("confirm", "mails")]),
        ("/do/purge", &[plan, ("confirm", "mails"), ("resaon", "rejected")]),
        ("/do/redrive", &[("queue", "mails")]),
        ("/do/redrive", &[("queue", "mails"), ("kind", "mail")]),
        ("/do/redrive", &[plan, plan]),
        ("/do/preview", &[("queue", "mails"), ("resaon", "rejected")]),
    ];
    for (path, fields) in cases {
        assert_eq!(browser.post(path, fields).await.status, StatusCode::BAD_REQUEST, "{path} {fields:?}");
    }
    let redrive = browser.post("/do/redrive", &[("plan", "no-such")]).await;
    assert_eq!(redrive.status, StatusCode::NOT_FOUND);
    assert_eq!(mails(&storage).await.dead_letters, Some(1));
}
#[tokio::test]
async fn button_of_a_row_changes_only_its_job() {
    let storage = filled().await;
    let admin = operate(&storage);
    let id = "a\r\nb\nc";
    for source in ["/shop", "/bank"] {
        let mail = RawSend::json("mail", r#"{"to":"bob@example.org"}"#).unwrap().id(id).source(source);
        admin.send("mails", mail).await.unwrap();
    }
    reject_all(&storage).await;
    let browser = Browser::operating(&storage);
    let page = browser.page("/queues/mails/dead").await;
    let address = |page: &str, source: &str| {
        let forms = page.split("action=\"").skip(1).filter_map(|form| form.split('"').next());
        let mut forms = forms.filter(|form| form.contains("do/redrive?") && form.contains(source));
        let (_, change) = forms.next().unwrap().split_once("/do/").unwrap();
        format!("/do/{}", change.replace("&#38;", "&"))
    };
    let redrive = browser.post(&address(&page, "shop"), &[]).await;
    let page = ended(&browser, redrive.location()).await;
    assert!(page.contains("1 put back"), "{page}");
    let left = admin.dead_letters("mails", &DeadLetterFilter::new().ids([id])).await.unwrap();
    let sources: Vec<_> = left.letters.iter().map(|letter| letter.source.as_str()).collect();
    assert_eq!(sources, ["/bank"]);
}

#[tokio::test]
async fn one_dead_letter_is_deleted_from_the_page_of_its_job() {
    let storage = filled().await;
    send(&operate(&storage), "other").await;
    reject_all(&storage).await;
    let browser = Browser::operating(&storage);
    assert!(browser.page("/job?queue=mails&id=dead").await.contains("do/purge?queue=mails"));
    let path = "/do/purge?queue=mails&id=dead";
    for confirm in ["", "dead"] {
        let refused = browser.post(path, &[("confirm", confirm)]).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{confirm}");
    }
    let before = mails(&storage).await.dead_letters.unwrap();
    let purge = browser.post(path, &[("confirm", "mails")]).await;
    assert!(ended(&browser, purge.location()).await.contains("1 deleted"));
    assert_eq!(mails(&storage).await.dead_letters, Some(before - 1));
    let left = operate(&storage).dead_letters("mails", &DeadLetterFilter::new()).await.unwrap();
    assert!(left.letters.iter().all(|letter| letter.id != "dead"), "{left:?}");
}

#[tokio::test]
async fn slow_redrive_is_stopped_between_two_dead_letters() {
    let storage = filled().await;
    // At one per second the redrive takes a minute: long enough to stop it on the slowest machine.
    for number in 0..60 {
        send(&operate(&storage), &format!("more-{number}")).await;
    }
    reject_all(&storage).await;
    let browser = Browser::operating(&storage);
    let dead = mails(&storage).await.dead_letters.unwrap();
    let preview = previewed(&browser, &[("queue", "mails")]).await;
    let redrive = browser.post("/do/redrive", &[("plan", operation(&preview)), ("rate", "1")]).await;
    let path = redrive.location().trim_start_matches("..").to_owned();
    let id = path.rsplit('/').next().unwrap().to_owned();
    let stopped = browser.post("/do/stop", &[("operation", &id)]).await;
    assert_eq!(stopped.status, StatusCode::SEE_OTHER);
    let page = ended(&browser, &path).await;
    assert!(page.contains("It ended early"), "{page}");
    let queue = mails(&storage).await;
    let (left, back) = (queue.dead_letters.unwrap(), queue.length.unwrap());
    assert!(left > 0 && left + back == dead, "{left} and {back} of {dead}");
}

/// Returns a storage with more dead letters than a redrive at one per second puts back during a test.
async fn many_dead() -> Storage {
    let storage = filled().await;
    for number in 0..60 {
        send(&operate(&storage), &format!("more-{number}")).await;
    }
    reject_all(&storage).await;
    storage
}
#[tokio::test]
async fn running_operation_ends_before_the_program() {
    let storage = many_dead().await;
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    let dashboard = Dashboard::new(operate(&storage)).tasks(tasks.clone()).stop_when(stop.clone());
    let browser = Browser::new(dashboard);
    let preview = previewed(&browser, &[("queue", "mails")]).await;
    browser.post("/do/redrive", &[("plan", operation(&preview)), ("rate", "1")]).await;
    stop.cancel();
    tasks.close();
    tasks.wait().await;
    let queue = mails(&storage).await;
    let (left, back) = (queue.dead_letters.unwrap(), queue.length.unwrap());
    assert_eq!(left + back, 62);
    let visible = operate(&storage).dead_letters("mails", &DeadLetterFilter::new()).await.unwrap();
    assert_eq!(visible.looked_at, left.min(32), "none is hidden");
}

#[tokio::test]
async fn report_is_shown_without_its_outcome_and_hides_the_reason_of_its_end() {
    let storage = many_dead().await;
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    let dashboard = Dashboard::new(operate(&storage)).tasks(tasks.clone()).stop_when(stop.clone());
    let hide = |shown: &Shown<'_>| {
        (shown.field == Field::Error && shown.kind.is_none()).then(|| "hidden".to_owned())
    };
    let browser = Browser::new(dashboard.redact(hide));
    let preview = previewed(&browser, &[("queue", "mails")]).await;
    let redrive = browser.post("/do/redrive", &[("plan", operation(&preview)), ("rate", "1")]).await;
    while mails(&storage).await.length == Some(0) {
        tokio::task::yield_now().await;
    }
    browser.post("/do/stop", &[("operation", operation(&redrive))]).await;
    tasks.close();
    tasks.wait().await;
    storage.queues().delete_queue(&QueueName::new("mails").unwrap()).await.unwrap();
    let page = browser.page(redrive.location().trim_start_matches("..")).await;
    assert!(page.contains("put back") && page.contains("It cannot be read: "), "{page}");
    assert!(page.contains("It ended early: <bdi>hidden</bdi>") && !page.contains("by a request"), "{page}");
}

#[tokio::test]
async fn job_is_sent_and_cancelled_from_the_browser() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    let fields = [
        ("queue", "mails"),
        ("kind", "mail"),
        ("payload", r#"{"to":"a"}"#),
        ("id", "by/hand?&"),
        ("delay", ""),
    ];
    let sent = browser.post("/do/send", &fields).await;
    let page = browser.page(sent.location().trim_start_matches("..")).await;
    assert!(page.contains("The job was sent.") && page.contains("by/hand?&#38;"), "{page}");
    let cancelled = browser.post("/do/cancel", &[("queue", "mails"), ("id", "by/hand?&")]).await;
    let page = browser.page(cancelled.location().trim_start_matches("..")).await;
    assert!(page.contains("Cancellation was requested by ada"), "{page}");
    let payload = ("payload", "{}");
    for wrong in [
        &[("payload", "{")][..],
        &[("payload", "")],
        &[("payload", " ")],
        &[],
        &[payload, ("delay", "soon")],
        &[payload, ("version", "-1")],
    ] {
        let fields = [&[("queue", "mails"), ("kind", "mail")], wrong].concat();
        assert_eq!(browser.post("/do/send", &fields).await.status, StatusCode::BAD_REQUEST, "{wrong:?}");
    }
}

#[tokio::test]
async fn key_and_id_are_sent_as_they_are() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    let fields = [("queue", "mails"), ("kind", "mail"), ("payload", "{}"), ("id", " by hand"), ("key", "a ")];
    assert_eq!(browser.post("/do/send", &fields).await.status, StatusCode::SEE_OTHER);
    let jobs = jobqueue_admin::Admin::new(storage).peek("mails").await.unwrap();
    assert!(jobs.iter().any(|job| job.id == " by hand" && job.key.as_deref() == Some("a ")), "{jobs:?}");
}

#[tokio::test]
async fn setting_is_changed_and_a_wrong_one_refused() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    let change = |value| [("queue", "mails"), ("name", "poisonthreshold"), ("value", value)];
    assert_eq!(browser.post("/do/settings", &change("3")).await.status, StatusCode::SEE_OTHER);
    assert_eq!(mails(&storage).await.metadata["poisonthreshold"], "3");
    assert_eq!(browser.post("/do/settings", &change("many")).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(browser.post("/do/settings", &change("")).await.status, StatusCode::SEE_OTHER);
    assert!(!mails(&storage).await.metadata.contains_key("poisonthreshold"));
}
