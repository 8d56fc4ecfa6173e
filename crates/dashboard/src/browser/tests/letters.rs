//! One dead letter among several of its job, and the reports of what became of dead letters.

use axum::http::StatusCode;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{Storage, Worker};
use jobqueue_admin::{DeadLetterFilter, RawSend};
use jobqueue_testing::faults::{Fault, Faulty};

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
async fn page_of_a_dead_letter_changes_no_later_one_of_its_job() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    let (job, list) =
        (browser.page("/job?queue=mails&id=dead").await, browser.page("/queues/mails/dead").await);
    // Meanwhile somebody else puts it back, and it dies again.
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
