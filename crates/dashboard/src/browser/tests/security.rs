//! Security rules that hold for every route.

use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::{Request, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jobqueue_admin::{AccessLevel, Action, Admin, OperatorResult};

use super::support::{Browser, body, filled, form, operate, send};
use crate::browser::assets::ASSETS;
use crate::browser::guard::HEADERS;
use crate::browser::routes::{CHANGES, DOCUMENTS, PAGES};
use crate::{Access, Dashboard};

/// A form that every change accepts.
const FORM: &[(&str, &str)] = &[
    ("queue", "mails"),
    ("id", "waiting"),
    ("kind", "mail"),
    ("payload", "{}"),
    ("name", "poisonthreshold"),
    ("value", "7"),
    ("confirm", "mails"),
    ("operation", "none"),
    ("schedule", "none"),
];

/// Returns an address of each page.
pub(super) fn addresses() -> Vec<String> {
    let address = |path: &str| match path {
        "/job" => "/job?queue=mails&id=waiting".to_owned(),
        "/batch" => "/batch?id=none".to_owned(),
        path => path.replace("{queue}", "mails").replace("{operation}", "none"),
    };
    let documents = DOCUMENTS.iter().map(|document| {
        let known = [("queue", "mails"), ("id", "waiting")].into_iter();
        let known = known.filter(|(name, _)| document.fields.contains(name));
        let query: Vec<_> = known.map(|(name, value)| format!("{name}={value}")).collect();
        format!("{}?{}", document.path, query.join("&"))
    });
    PAGES.iter().map(|page| address(page.path)).chain(documents).collect()
}

#[tokio::test]
async fn every_answer_has_the_headers() {
    let browser = Browser::operating(&filled().await);
    let mut answers = Vec::new();
    for address in addresses() {
        let answer = browser.get(&address).await;
        let expected = matches!(answer.status, StatusCode::OK | StatusCode::NOT_FOUND);
        assert!(expected, "{address}: {} {}", answer.status, answer.text);
        answers.push((address, answer));
    }
    for change in CHANGES {
        answers.push((format!("POST {}", change.path), browser.post(change.path, FORM).await));
        answers.push((format!("GET {}", change.path), browser.get(change.path).await));
    }
    answers.push(("missing".to_owned(), browser.get("/no/such/page").await));
    for (address, answer) in &answers {
        for (name, value) in HEADERS {
            assert_eq!(answer.headers[*name], *value, "{address}");
        }
        assert_eq!(answer.headers["cache-control"], "no-store", "{address}");
    }
    for asset in [&ASSETS.style, &ASSETS.icon, &ASSETS.htmx, &ASSETS.sse, &ASSETS.script] {
        let answer = browser.get(&format!("/assets/{}", asset.name)).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
    }
}

#[tokio::test]
async fn pages_have_no_inline_script_and_no_inline_style() {
    let browser = Browser::operating(&filled().await);
    for address in addresses() {
        let text = browser.get(&address).await.text;
        assert!(
            !text.contains(" style=") && !text.contains("<style") && !text.contains(" onclick"),
            "{address}"
        );
        for script in text.split("<script").skip(1) {
            assert!(script.starts_with(" src=") && script.contains("defer></script>"), "{address}");
        }
    }
}

#[tokio::test]
async fn changing_routes_are_forbidden_to_read_only_operators() {
    let events = Arc::new(Mutex::new(Vec::new()));
    let (storage, heard) = (filled().await, Arc::clone(&events));
    let admin = Admin::builder(storage.clone())
        .on_event(move |event| heard.lock().unwrap().push(event.clone()))
        .build();
    let before = operate(&storage).queue("mails").await.unwrap();
    let resolved = Dashboard::new(operate(&storage)).access(|_| Access::read_only("eve"));
    for browser in [Browser::new(Dashboard::new(admin)), Browser::new(resolved)] {
        for change in CHANGES {
            let answer = browser.post(change.path, FORM).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{}: {}", change.path, answer.text);
        }
        for address in addresses() {
            assert!(
                !browser.get(&address).await.text.contains("method=\"post\""),
                "{address} offers a change"
            );
        }
    }
    let after = operate(&storage).queue("mails").await.unwrap();
    assert_eq!(before.length, after.length);
    assert_eq!(before.dead_letters, after.dead_letters);
    assert_eq!(before.metadata, after.metadata);
    let events = events.lock().unwrap();
    assert_eq!(events.len(), CHANGES.len());
    assert!(events.iter().all(|event| matches!(event.result, OperatorResult::Refused(_))), "{events:?}");
    assert!(events.iter().all(|event| event.subject.ends_with(" for queue mails")), "{events:?}");
}

#[tokio::test]
async fn changes_from_other_sites_are_refused() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    let host = ("host", "jobs.example");
    for change in CHANGES {
        let forged: [&[(&str, &str)]; 4] = [
            &[host],
            &[host, ("sec-fetch-site", "cross-site"), ("origin", "http://jobs.example")],
            &[host, ("origin", "http://evil.example")],
            &[host, ("origin", "null")],
        ];
        for headers in forged {
            let request =
                headers.iter().fold(form(change.path), |form, (name, value)| form.header(*name, *value));
            let answer = browser.send(request.body(body(FORM)).unwrap()).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{} {headers:?}", change.path);
        }
    }
    assert_eq!(operate(&storage).queue("mails").await.unwrap().paused, Some(false));
    let fields = [("queue", "mails")];
    let same = form("/do/pause").header("host", "jobs.example").header("origin", "http://jobs.example");
    assert_eq!(browser.send(same.body(body(&fields)).unwrap()).await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn credentials_are_demanded_of_every_route() {
    let dashboard = Dashboard::new(operate(&filled().await)).credentials("ada", "secret");
    let browser = Browser::new(dashboard);
    for address in addresses() {
        let answer = browser.get(&address).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
        assert!(answer.headers.contains_key("www-authenticate"));
    }
    let with = |password: &str| {
        let text = STANDARD.encode(format!("ada:{password}"));
        Request::get("/").header("authorization", format!("Basic {text}")).body(Body::empty()).unwrap()
    };
    assert_eq!(browser.send(with("secret")).await.status, StatusCode::OK);
    assert_eq!(browser.send(with("Secret")).await.status, StatusCode::UNAUTHORIZED);
}

// Programs read the reason of a refusal from the same field as the reason of any other error.
#[tokio::test]
async fn refusals_of_documents_are_json() {
    let dashboard = || async { Dashboard::new(operate(&filled().await)) };
    let closed = Browser::new(dashboard().await.credentials("ada", "secret"));
    let local = Browser::new(dashboard().await.local_only(true));
    let forbidding = Browser::new(dashboard().await.access(|_| Access::forbidden()));
    let open = Browser::new(dashboard().await);
    for (browser, path, status) in [
        (&closed, "/api/queues", StatusCode::UNAUTHORIZED),
        (&local, "/api/queues", StatusCode::MISDIRECTED_REQUEST),
        (&forbidding, "/api/queues", StatusCode::FORBIDDEN),
        (&open, "/api/none", StatusCode::NOT_FOUND),
    ] {
        let request = Request::get(path).header("host", "evil.example").body(Body::empty()).unwrap();
        let answer = browser.send(request).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.text);
        let document: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
        assert!(document["error"].is_string(), "{document}");
    }
    let posted = open.send(form("/api/queues").body(body(FORM)).unwrap()).await;
    assert_eq!(posted.status, StatusCode::FORBIDDEN);
    assert!(posted.text.starts_with("{\"error\":"), "{}", posted.text);
}

#[tokio::test]
async fn operators_do_what_their_access_allows() {
    let storage = filled().await;
    let dashboard = Dashboard::new(operate(&storage)).access(|parts| match parts.headers.get("x-user") {
        Some(name) => Access::new(name.to_str().unwrap(), AccessLevel::only([Action::Pause])),
        None => Access::forbidden(),
    });
    let browser = Browser::new(dashboard);
    assert_eq!(browser.get("/").await.status, StatusCode::FORBIDDEN);
    let as_bob = |request: axum::http::request::Builder| request.header("x-user", "bob");
    let page = browser.send(as_bob(Request::get("/queues/mails")).body(Body::empty()).unwrap()).await.text;
    assert!(page.contains("do/pause") && !page.contains("do/settings") && page.contains("bob"), "{page}");
    let fields = [("queue", "mails")];
    let post = |path| as_bob(form(path)).header("sec-fetch-site", "same-origin").body(body(&fields)).unwrap();
    assert_eq!(browser.send(post("/do/pause")).await.status, StatusCode::SEE_OTHER);
    assert_eq!(browser.send(post("/do/resume")).await.status, StatusCode::FORBIDDEN);
    assert_eq!(operate(&storage).queue("mails").await.unwrap().paused, Some(true));
}

/// A viewer must not fill the disk of the audit log, because that would stop all changes.
#[tokio::test]
async fn refusal_records_no_invalid_queue_name() {
    let subjects = Arc::<Mutex<Vec<String>>>::default();
    let heard = Arc::clone(&subjects);
    let admin = Admin::builder(filled().await);
    let admin = admin.on_event(move |event| heard.lock().unwrap().push(event.subject.clone())).build();
    let browser = Browser::new(Dashboard::new(admin));
    for queue in ["mails", &"x".repeat(1_000_000)] {
        assert_eq!(browser.post("/do/pause", &[("queue", queue)]).await.status, StatusCode::FORBIDDEN);
    }
    let subjects = subjects.lock().unwrap();
    assert_eq!(subjects[..], ["/do/pause for queue mails", "/do/pause for queue an invalid name"]);
}

#[tokio::test]
async fn large_forms_are_refused() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    let payload = format!("\"{}\"", "x".repeat(5 * 1024 * 1024));
    let answer =
        browser.post("/do/send", &[("queue", "mails"), ("kind", "mail"), ("payload", &payload)]).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    send(&operate(&storage), "after").await;
}
#[tokio::test]
async fn dashboard_for_this_machine_answers_to_no_other_name() {
    let storage = filled().await;
    let ask = async |local: bool, host: &str| {
        let browser = Browser::new(Dashboard::new(operate(&storage)).local_only(local));
        let form = form("/do/pause").header("sec-fetch-site", "same-origin").header("host", host);
        browser.send(form.body(body(&[("queue", "mails")])).unwrap()).await.status
    };
    assert_eq!(ask(true, "evil.example").await, StatusCode::MISDIRECTED_REQUEST);
    assert_eq!(operate(&storage).queue("mails").await.unwrap().paused, Some(false));
    assert_eq!(ask(true, "localhost:8080").await, StatusCode::SEE_OTHER);
    assert_eq!(ask(false, "evil.example").await, StatusCode::SEE_OTHER);
}
