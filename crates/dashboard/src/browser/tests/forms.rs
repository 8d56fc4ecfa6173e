//! Forms of changes that are refused.

use axum::http::StatusCode;

use super::changes::{operation, previewed};
use super::support::{Browser, filled, operate};
use crate::{Access, Dashboard};

/// The form on the page of a refused change.
const FORM: &str = "id=\"again\"";

#[tokio::test]
async fn form_of_a_refused_send_keeps_what_was_typed() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    let fields = [
        ("queue", "mails"),
        ("kind", "mail"),
        ("payload", "{broken <b>"),
        ("delay", "10m"),
        ("key", "a key"),
        ("id", ""),
    ];
    let refused = browser.post("/do/send", &fields).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    let page = &refused.text;
    assert!(page.contains(FORM) && page.contains("do/send\""), "{page}");
    assert!(page.contains("{broken &#60;b&#62;</textarea>"), "{page}");
    for value in ["mails", "mail", "10m", "a key"] {
        assert!(page.contains(&format!("value=\"{value}\"")), "{value}: {page}");
    }
    // Its queue is gone.
    let fields = [("queue", "no-such"), ("kind", "mail"), ("payload", "{}")];
    let refused = browser.post("/do/send", &fields).await;
    assert_eq!(refused.status, StatusCode::NOT_FOUND);
    assert!(refused.text.contains(FORM), "{}", refused.text);
}

#[tokio::test]
async fn forms_of_a_refused_pause_and_setting_keep_what_was_typed() {
    let browser = Browser::operating(&filled().await);
    let pause = [("queue", "mails"), ("for", "soon"), ("note", "the bank is down")];
    let setting = [("queue", "mails"), ("name", "poisonthreshold"), ("value", "many")];
    for (path, fields) in [("/do/pause", pause), ("/do/settings", setting)] {
        let refused = browser.post(path, &fields).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{path}");
        assert!(refused.text.contains(FORM), "{path}: {}", refused.text);
        for (name, value) in fields {
            assert!(refused.text.contains(&format!("name=\"{name}\"")), "{name}: {}", refused.text);
            assert!(refused.text.contains(&format!("value=\"{value}\"")), "{value}: {}", refused.text);
        }
        assert!(refused.text.contains("queues/mails\">Queue mails</a>"), "{path}: {}", refused.text);
    }
}

#[tokio::test]
async fn form_of_a_refused_redrive_keeps_its_plan() {
    let browser = Browser::operating(&filled().await);
    let preview = previewed(&browser, &[("queue", "mails")]).await;
    let plan = operation(&preview);
    let refused = browser.post("/do/redrive", &[("plan", plan), ("rate", "5"), ("canary", "none")]).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    for value in [plan, "5", "none"] {
        assert!(refused.text.contains(&format!("value=\"{value}\"")), "{value}: {}", refused.text);
    }
    // The button of a row has no field to keep.
    let refused = browser.post("/do/redrive?queue=mails", &[]).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(!refused.text.contains(FORM), "{}", refused.text);
}

// A second page deleted on one field, without the number and the batches of the preview.
#[tokio::test]
async fn refused_purge_is_repeated_from_its_preview_only() {
    let browser = Browser::operating(&filled().await);
    let preview = previewed(&browser, &[("queue", "mails")]).await;
    let refused = browser.post("/do/purge", &[("plan", operation(&preview)), ("confirm", "mail")]).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(!refused.text.contains("do/purge"), "{}", refused.text);
}

#[tokio::test]
async fn forbidden_change_has_no_form() {
    let storage = filled().await;
    let viewing = Dashboard::new(operate(&storage)).access(|_| Access::read_only("eve"));
    let refused = Browser::new(viewing).post("/do/pause", &[("queue", "mails"), ("note", "deploy")]).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert!(!refused.text.contains("method=\"post\""), "{}", refused.text);
}
