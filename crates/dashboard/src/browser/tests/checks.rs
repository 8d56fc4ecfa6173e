//! Payloads that are checked before they are sent.

use axum::http::StatusCode;
use jobqueue::{QueueMessage, Storage};
use jobqueue_admin::{AccessLevel, Admin, RawSend};
use serde::{Deserialize, Serialize};

use super::changes::mails;
use super::support::{Browser, filled, operate, reject_all};
use crate::Dashboard;

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail")]
struct CheckedMail {
    #[message(length(3..=40))]
    to: String,
}

fn checking(storage: &Storage) -> Browser {
    let admin = Admin::builder(storage.clone()).access(AccessLevel::Operate).operator("ada");
    Browser::new(Dashboard::new(admin.check_payloads_of::<CheckedMail>().build()))
}

#[tokio::test]
async fn refused_edit_names_the_rule_and_keeps_the_text() {
    let storage = filled().await;
    let browser = checking(&storage);
    let waiting = mails(&storage).await.length;
    let fields = |payload| [("queue", "mails"), ("kind", "mail"), ("payload", payload)];
    let refused = browser.post("/do/send", &fields(r#"{"to":"@"}"#)).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.text.contains("does not fit the message type"), "{}", refused.text);
    assert!(refused.text.contains("to: must"), "{}", refused.text);
    assert!(refused.text.contains("{&#34;to&#34;:&#34;@&#34;}</textarea>"), "{}", refused.text);
    let misspelt = browser.post("/do/send", &fields(r#"{"too":"bob@example.org"}"#)).await;
    assert_eq!(misspelt.status, StatusCode::BAD_REQUEST);
    let newer = [fields(r#"{"to":"bob@example.org"}"#).as_slice(), &[("version", "2")]].concat();
    assert_eq!(browser.post("/do/send", &newer).await.status, StatusCode::BAD_REQUEST);
    let binary = [fields(r#"{"to":"bob@example.org"}"#).as_slice(), &[("contenttype", "image/png")]].concat();
    assert_eq!(browser.post("/do/send", &binary).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(mails(&storage).await.length, waiting, "nothing was sent");
}

#[tokio::test]
async fn correct_edit_is_sent_with_trace_and_headers_of_the_original() {
    let storage = filled().await;
    let event = r#"{"specversion":"1.0","id":"traced","source":"/shop","type":"mail","tenant":"blue",
        "traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","data":{"to":"bob@exmaple.org"}}"#;
    operate(&storage).send("mails", RawSend::event(event).unwrap()).await.unwrap();
    reject_all(&storage).await;
    let browser = checking(&storage);
    let form = browser.page("/send?queue=mails&id=traced").await;
    assert!(form.contains("checked before they are sent: <bdi>mail</bdi>"), "{form}");
    assert!(form.contains(r#"name="ofid" autocomplete="off" value="traced""#), "{form}");
    let fields = [
        ("queue", "mails"),
        ("kind", "mail"),
        ("payload", r#"{"to":"bob@example.org"}"#),
        ("id", "mended"),
        ("ofqueue", "mails"),
        ("ofid", "traced"),
        ("ofsource", "/shop"),
    ];
    let sent = browser.post("/do/send", &fields).await;
    assert!(sent.location().ends_with("&done=sent"), "{}", sent.location());
    let jobs = operate(&storage).peek("mails").await.unwrap();
    let mended = jobs.iter().find(|job| job.id == "mended").unwrap();
    assert_eq!(mended.headers.get("tenant").map(String::as_str), Some("blue"));
    assert!(mended.trace.as_deref().is_some_and(|trace| trace.contains("0af7651916cd43dd8448eb211c80319c")));
    let gone = fields.map(|(name, value)| (name, if name == "ofid" { "none" } else { value }));
    let refused = browser.post("/do/send", &gone).await;
    assert_eq!(refused.status, StatusCode::NOT_FOUND);
    assert!(refused.text.contains("bob@example.org"), "{}", refused.text);
}

#[tokio::test]
async fn payload_of_an_unknown_kind_is_told_as_unchecked() {
    let storage = filled().await;
    let fields = [("queue", "mails"), ("kind", "film"), ("payload", r#"{"to":""}"#), ("id", "film")];
    let browser = checking(&storage);
    let sent = browser.post("/do/send", &fields).await;
    let page = browser.page(sent.location().trim_start_matches("..")).await;
    assert!(page.contains("Its payload was not checked here; the worker checks it"), "{page}");
    let form = Browser::operating(&storage).page("/send?queue=mails").await;
    assert!(form.contains("The payload is not checked here; the worker checks it."), "{form}");
}
