//! Single dead letters of jobs with several, and the reports of operations on dead letters.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use axum::http::StatusCode;
use jobqueue::sharded::Sharded;
use jobqueue::storage::{
    DeadLetterMessage, Interceptor, MessageRef, Metadata, NativeDeadLetters, Operation, PutMessage,
    QueuePowers, StoreError, StoreErrorKind,
};
use jobqueue::{QueueName, SendOptions, Storage, Worker};
use jobqueue_admin::{AccessLevel, Action, Admin, DeadLetterFilter, OperatorEvent, RawSend};
use jobqueue_testing::faults::{Fault, Faulty};
use tokio_util::sync::CancellationToken;

use crate::{Dashboard, Field};

use super::changes::{ended, operation, previewed};
use super::support::{Browser, Mail, filled, operate, reject_all, send};

/// Returns the address of the form for this change.
fn address(page: &str, change: &str) -> String {
    let mut forms = page.split("action=\"").skip(1).filter_map(|form| form.split('"').next());
    let form = forms.find(|form| form.contains(change)).unwrap_or_else(|| panic!("{change}: {page}"));
    let (_, change) = form.split_once("/do/").unwrap_or_else(|| panic!("{form}"));
    format!("/do/{}", change.replace("&#38;", "&"))
}

async fn dead(storage: &Storage) -> u64 {
    operate(storage).queue("mails").await.unwrap().dead_letters.unwrap()
}

#[tokio::test]
async fn page_of_a_dead_letter_changes_no_later_letter() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    let (job, list) =
        (browser.page("/job?queue=mails&id=dead").await, browser.page("/queues/mails/dead").await);
    // Another operator puts it back after the pages were loaded, and it dies again.
    let all = DeadLetterFilter::all();
    assert_eq!(operate(&storage).redrive("mails").filter(all).run().await.unwrap().count, 1);
    reject_all(&storage).await;
    assert_eq!(dead(&storage).await, 2);
    let purge = browser.post(&address(&job, "do/purge?"), &[("confirm", "mails")]).await;
    assert!(ended(&browser, purge.location()).await.contains("0 deleted"));
    for page in [&job, &list] {
        let redrive = browser.post(&address(page, "do/redrive?"), &[]).await;
        assert!(ended(&browser, redrive.location()).await.contains("0 put back"));
    }
    assert_eq!(dead(&storage).await, 2);
    let page = browser.page("/queues/mails/dead?id=dead").await;
    let redrive = browser.post(&address(&page, "do/redrive?"), &[]).await;
    assert!(ended(&browser, redrive.location()).await.contains("1 put back"));
}

#[tokio::test]
async fn preview_names_the_letter_that_a_redrive_deletes_as_a_copy() {
    let storage = filled().await;
    send(&operate(&storage), "dead").await;
    reject_all(&storage).await;
    let browser = Browser::operating(&storage);
    let preview = previewed(&browser, &[("queue", "mails"), ("id", "dead")]).await;
    let page = ended(&browser, preview.location()).await;
    assert!(page.contains("a redrive deletes 1 as a copy"), "{page}");
    let redrive = browser.post("/do/redrive", &[("plan", operation(&preview))]).await;
    let page = ended(&browser, redrive.location()).await;
    assert!(page.contains("1 put back") && page.contains("1 deleted as a copy"), "{page}");
    assert!(!page.contains("were not met"), "{page}");
}

/// A key is compared as a whole: other keys may contain it.
#[tokio::test]
async fn dead_letters_of_a_key_are_selected() {
    let storage = Storage::memory();
    let admin = operate(&storage);
    admin.create_queue("mails").await.unwrap();
    for (id, key) in [("exact", "ada"), ("longer", "canada"), ("blank", " ada")] {
        let mail = RawSend::json("mail", r#"{"to":"bob@example.org"}"#).unwrap().id(id).key(key);
        admin.send("mails", mail).await.unwrap();
    }
    reject_all(&storage).await;
    let browser = Browser::operating(&storage);
    let page = browser.page("/queues/mails/dead?key=ada").await;
    assert!(
        page.contains("1 of the 3 listed dead letters match") && page.contains(r#"value="ada""#),
        "{page}"
    );
    let found: serde_json::Value =
        serde_json::from_str(&browser.get("/api/dead?queue=mails&key=ada").await.text).unwrap();
    assert_eq!(found["matching"], 1, "{found}");
    let preview = previewed(&browser, &[("queue", "mails"), ("key", "ada")]).await;
    let plan = operation(&preview);
    let purge = browser.post("/do/purge", &[("plan", plan), ("confirm", "mails")]).await;
    assert!(ended(&browser, purge.location()).await.contains("1 deleted"));
    let page = browser.page("/queues/mails/dead").await;
    assert!(!page.contains(">exact<") && page.contains(">longer<") && page.contains(">blank<"), "{page}");
    assert!(page.contains(">Key</th>") && page.contains("<bdi>canada</bdi>"), "{page}");
    let hides_keys = Dashboard::new(admin.clone())
        .redact(|shown| matches!(shown.field, Field::Key).then(|| "hidden".to_owned()));
    let page = Browser::new(hides_keys).page("/queues/mails/dead").await;
    assert!(page.contains("<bdi>hidden</bdi>") && !page.contains("canada"), "{page}");
    let hiding = Browser::new(Dashboard::new(admin).redact(|_| None));
    assert_eq!(hiding.get("/queues/mails/dead?key=ada").await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn page_of_a_purge_counts_the_payloads_that_stay() {
    let faulty = Faulty::new(&Storage::memory());
    let storage = faulty.storage();
    let admin = operate(&storage);
    admin.create_queue("mails").await.unwrap();
    let large = format!(r#"{{"to":"{}"}}"#, "x".repeat(100_000));
    admin.send("mails", RawSend::json("mail", &large).unwrap().id("large")).await.unwrap();
    let handler = |_: Mail| async { Err::<(), _>(jobqueue::JobError::dead_letter("never")) };
    let worker = Worker::builder(storage.clone()).handle(handler).build().unwrap();
    let _ = worker.run_until_idle().await.unwrap();
    faulty.plan_always(Operation::DeleteBlob, Fault::Refuse(StoreErrorKind::Unauthorized));
    let browser = Browser::operating(&storage);
    let preview = previewed(&browser, &[("queue", "mails")]).await;
    let fields = [("plan", operation(&preview)), ("confirm", "mails")];
    let purge = browser.post("/do/purge", &fields).await;
    let page = ended(&browser, purge.location()).await;
    assert!(page.contains("1 deleted") && page.contains("payload of 1 of them stays"), "{page}");
}

/// A refresh would search the whole queue for the outcomes of the jobs.
#[tokio::test(start_paused = true)]
async fn page_of_an_operation_is_not_refreshed_after_its_end() {
    let stop = CancellationToken::new();
    let dashboard = Dashboard::new(operate(&filled().await)).refresh(Duration::from_millis(100));
    let browser = Browser::new(dashboard.stop_when(stop.clone()));
    let preview = previewed(&browser, &[("queue", "mails")]).await;
    let redrive = browser.post("/do/redrive", &[("plan", operation(&preview))]).await;
    assert!(ended(&browser, redrive.location()).await.contains("1 put back"));
    let path = format!("/events?operation={}", operation(&redrive));
    let events = tokio::spawn(async move { browser.get(&path).await });
    tokio::time::sleep(Duration::from_secs(60)).await;
    stop.cancel();
    let events = events.await.unwrap().text;
    assert_eq!(events.matches("event: refresh").count(), 1, "{events}");
}

#[tokio::test]
async fn groups_of_errors_that_are_not_shown_are_counted() {
    let storage = filled().await;
    let admin = operate(&storage);
    for number in 0..60 {
        let to = RawSend::json("mail", &format!(r#"{{"to":"{}@example.org"}}"#, "a".repeat(number + 1)));
        admin.send("mails", to.unwrap()).await.unwrap();
    }
    reject_all(&storage).await;
    let browser = Browser::operating(&storage);
    let preview = previewed(&browser, &[("queue", "mails")]).await;
    let page = ended(&browser, preview.location()).await;
    assert!(page.contains("11 more errors are not shown"), "{page}");
}

#[tokio::test]
async fn copy_in_the_form_keeps_the_sender() {
    let storage = Storage::memory();
    let admin = operate(&storage);
    admin.create_queue("mails").await.unwrap();
    let event = r#"{"specversion":"1.0","id":"one","source":"/shop","type":"mail","data":{"to":"ada"}}"#;
    admin.send("mails", RawSend::event(event).unwrap()).await.unwrap();
    let browser = Browser::operating(&storage);
    let form = browser.page("/send?queue=mails&id=one").await;
    assert!(form.contains(r#"name="source" autocomplete="off" value="/shop""#), "{form}");
    let fields =
        [("queue", "mails"), ("kind", "mail"), ("source", "/shop"), ("payload", "{}"), ("id", "two")];
    assert_eq!(browser.post("/do/send", &fields).await.status, StatusCode::SEE_OTHER);
    let jobs = admin.peek("mails").await.unwrap();
    assert_eq!(jobs[1].source, "/shop");
}

// The storage has moved the letter, or another program has put it there.
#[tokio::test]
async fn letter_without_a_message_name_is_not_a_later_letter() {
    let storage = filled().await;
    let event = r#"{"specversion":"1.0","id":"plain","source":"/other","type":"mail","data":{"to":"ada"}}"#;
    let poison = QueueName::new("mails-poison").unwrap();
    let _ = storage.queues().put(&poison, PutMessage::new(event)).await.unwrap();
    let browser = Browser::operating(&storage);
    let page = browser.page("/job?queue=mails&id=plain").await;
    let plain = DeadLetterFilter::new().ids(["plain"]);
    assert_eq!(operate(&storage).redrive("mails").filter(plain).run().await.unwrap().count, 1);
    reject_all(&storage).await;
    let before = dead(&storage).await;
    let purge = browser.post(&address(&page, "do/purge?"), &[("confirm", "mails")]).await;
    assert!(ended(&browser, purge.location()).await.contains("0 deleted"));
    assert_eq!(dead(&storage).await, before);
    let page = browser.page("/job?queue=mails&id=plain").await;
    let purge = browser.post(&address(&page, "do/purge?"), &[("confirm", "mails")]).await;
    assert!(ended(&browser, purge.location()).await.contains("1 deleted"));
}

#[tokio::test]
async fn redrive_that_waits_for_its_canary_says_so() {
    let storage = filled().await;
    for id in ["one", "two"] {
        send(&operate(&storage), id).await;
    }
    reject_all(&storage).await;
    let browser = Browser::operating(&storage);
    let preview = previewed(&browser, &[("queue", "mails")]).await;
    let redrive = browser.post("/do/redrive", &[("plan", operation(&preview)), ("canary", "1")]).await;
    let path = redrive.location().trim_start_matches("..").to_owned();
    let started = Instant::now();
    while !browser.page(&path).await.contains("waits until the first 1 has ended") {
        assert!(started.elapsed() < Duration::from_secs(60), "{}", browser.page(&path).await);
        tokio::task::yield_now().await;
    }
    while !browser.page(&path).await.contains("The queue is served by no worker") {
        assert!(started.elapsed() < Duration::from_secs(60), "{}", browser.page(&path).await);
        tokio::task::yield_now().await;
    }
    browser.post("/do/stop", &[("operation", operation(&redrive))]).await;
    let page = ended(&browser, &path).await;
    assert!(page.contains("<strong>1 put back</strong>; ") && page.contains(" looked at and left"), "{page}");
}

#[tokio::test]
async fn stop_of_an_operation_is_in_the_audit() {
    let storage = filled().await;
    send(&operate(&storage), "other").await;
    reject_all(&storage).await;
    let events = Arc::<Mutex<Vec<OperatorEvent>>>::default();
    let sink = Arc::clone(&events);
    let admin = Admin::builder(storage.clone()).access(AccessLevel::Operate).operator("ada");
    let admin = admin.on_event(move |event| sink.lock().unwrap().push(event.clone())).build();
    let browser = Browser::new(Dashboard::new(admin));
    let preview = previewed(&browser, &[("queue", "mails")]).await;
    let fields = [("plan", operation(&preview)), ("canary", "1")];
    let redrive = browser.post("/do/redrive", &fields).await;
    browser.post("/do/stop", &[("operation", operation(&redrive))]).await;
    let events = events.lock().unwrap().clone();
    let stop = events.iter().find(|event| event.subject.starts_with("operation ")).unwrap();
    assert_eq!(stop.operator, "ada");
    assert_eq!(stop.action, Action::Redrive);
    assert!(stop.subject.ends_with("on dead letters of mails"), "{stop:?}");
    assert!(stop.subject.contains(operation(&redrive)), "{stop:?}");
}

#[tokio::test]
async fn copy_in_the_form_keeps_the_type_of_the_payload() {
    let storage = Storage::memory();
    let admin = operate(&storage);
    admin.create_queue("mails").await.unwrap();
    let event = r#"{"specversion":"1.0","id":"one","source":"/shop","type":"mail","datacontenttype":"application/mail+json","data":{"to":"ada"}}"#;
    admin.send("mails", RawSend::event(event).unwrap()).await.unwrap();
    let browser = Browser::operating(&storage);
    let form = browser.page("/send?queue=mails&id=one").await;
    assert!(
        form.contains(r#"name="contenttype" autocomplete="off" value="application/mail+json""#),
        "{form}"
    );
    let fields = [
        ("queue", "mails"),
        ("kind", "mail"),
        ("contenttype", "application/mail+json"),
        ("payload", "{}"),
        ("id", "two"),
    ];
    assert_eq!(browser.post("/do/send", &fields).await.status, StatusCode::SEE_OTHER);
    let jobs = admin.peek("mails").await.unwrap();
    assert_eq!(jobs[1].content_type.as_deref(), Some("application/mail+json"));
}

// Shards show only the first messages of a queue. Another message of the job may wait behind them or be
// delayed; here another job is delayed.
#[tokio::test]
async fn dead_job_can_be_cancelled_where_not_all_jobs_are_shown() {
    let sharded = Sharded::builder().account("a", Storage::memory()).build().unwrap();
    for (storage, can_be_cancelled) in [(Storage::from(sharded.stores()), true), (Storage::memory(), false)] {
        let admin = operate(&storage);
        admin.create_queue("mails").await.unwrap();
        send(&admin, "twice").await;
        reject_all(&storage).await;
        let later = SendOptions::new().delay(Duration::from_secs(3_600));
        admin.send("mails", RawSend::json("mail", "{}").unwrap().with(later)).await.unwrap();
        let page = Browser::operating(&storage).page("/job?queue=mails&id=twice").await;
        assert_eq!(page.contains("do/cancel"), can_be_cancelled, "{page}");
    }
}

/// A storage with native dead-letter queues, where a letter keeps the insertion time of its message.
#[derive(Debug)]
struct OwnLetters;

impl Interceptor for OwnLetters {
    fn queue_powers(&self, powers: QueuePowers) -> QueuePowers {
        QueuePowers { dead_letters: Some(Arc::new(Self)), ..powers }
    }
}

#[async_trait]
impl NativeDeadLetters for OwnLetters {
    async fn dead_letter(
        &self,
        _: &QueueName,
        _: &MessageRef,
        _: DeadLetterMessage,
    ) -> Result<(), StoreError> {
        unreachable!("the test moves letters itself")
    }
}

// The page used to show "0 ended, 0 wait or run, 0 died again".
#[tokio::test]
async fn jobs_that_are_dead_letters_without_a_known_time_are_shown() {
    let inner = Storage::memory();
    operate(&inner).create_queue("mails").await.unwrap();
    send(&operate(&inner), "one").await;
    let (mails, dead) = (QueueName::new("mails").unwrap(), QueueName::new("mails-poison").unwrap());
    inner.queues().create_queue(&dead, &Metadata::new()).await.unwrap();
    let kill = async || {
        let text = inner.queues().peek(&mails, 1).await.unwrap().remove(0).text.unwrap();
        inner.queues().clear(&mails).await.unwrap();
        inner.queues().put(&dead, PutMessage::new(text)).await.unwrap();
    };
    kill().await;
    let storage = Storage::from(inner.stores().intercepted(&Arc::new(OwnLetters)));
    let browser = Browser::new(Dashboard::new(operate(&storage)).refresh(Duration::ZERO));
    let preview = previewed(&browser, &[("queue", "mails")]).await;
    let redrive = browser.post("/do/redrive", &[("plan", operation(&preview))]).await;
    assert!(ended(&browser, redrive.location()).await.contains("1 put back"));
    kill().await;
    let started = Instant::now();
    loop {
        let page = browser.page(redrive.location().trim_start_matches("..")).await;
        if page.contains("<strong class=\"bad\">1</strong> is a dead letter") {
            break;
        }
        // Viewers share a look for 50 milliseconds.
        assert!(started.elapsed() < Duration::from_secs(60), "{page}");
        tokio::task::yield_now().await;
    }
}
