//! The dashboard of several storages.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use jobqueue::Storage;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue_admin::{AccessLevel, Admin};
use jobqueue_testing::faults::{Fault, Faulty};
use serde_json::Value;
use tokio::time::Instant;
use tower::ServiceExt;

use super::links::crawl;
use super::support::{Browser, body, filled, form, operate};
use crate::browser::assets::ASSETS;
use crate::browser::guard::HEADERS;
use crate::{Access, Dashboard};

fn joined<const N: usize>(storages: [(&str, &Storage); N]) -> Browser {
    let dashboards = storages.map(|(name, storage)| (name, Dashboard::new(operate(storage))));
    Browser(Dashboard::join(dashboards).unwrap())
}

/// Returns the rows by the names of their storages.
async fn rows(browser: &Browser) -> impl Fn(&str) -> Value {
    let document: Value = serde_json::from_str(&browser.page("/api/storages").await).unwrap();
    let rows = document["storages"].as_array().unwrap().clone();
    move |name| rows.iter().find(|row| row["name"] == name).unwrap().clone()
}

#[tokio::test]
async fn each_storage_has_a_row_and_its_pages_below_its_name() {
    let (prod, staging) = (filled().await, Storage::memory());
    let browser = joined([("prod", &prod), ("staging", &staging)]);
    let page = browser.page("/").await;
    assert!(page.contains("<a href=\"./prod/dead\">1</a>"), "{page}");
    assert!(
        page.contains("<a href=\"./staging/workers\">0</a>") && !page.contains("./staging/dead"),
        "{page}"
    );
    let row = rows(&browser).await;
    assert_eq!(row("prod")["waiting"], 1);
    assert_eq!(row("prod")["dead_letters"], 1);
    assert_eq!(row("staging")["queues"], 0);
    // The page of a storage links to the same page of the other storage, and to the page of all.
    let dead = browser.page("/prod/dead").await;
    assert!(dead.contains("<title>Dead letters · prod · jobqueue</title>"), "{dead}");
    assert!(dead.contains("<a href=\"./../prod/dead\" aria-current=\"true\">prod</a>"), "{dead}");
    assert!(dead.contains("<a href=\"./../staging/dead\">staging</a>"), "{dead}");
    assert!(dead.contains("<a href=\"./../overview\">All storages</a>"), "{dead}");
    assert!(!browser.page("/staging/dead").await.contains("/job?"), "prod's dead letter");
    // The dashboard of a single storage has no such links.
    assert!(!Browser::operating(&prod).page("/dead").await.contains("All storages"));
}

#[tokio::test]
async fn all_links_lead_somewhere_under_any_path() {
    let (prod, staging) = (filled().await, Storage::memory());
    let dashboards = || joined([("prod", &prod), ("staging", &staging)]).0;
    let alone = crawl(&Browser(dashboards()), "/").await;
    for wanted in ["/overview", "/prod/queues/mails/dead", "/staging/workers", "/staging/send"] {
        assert!(alone.contains(wanted), "{wanted}: {alone:?}");
    }
    let service = Router::new().nest_service("/ops/jobs", dashboards());
    for start in ["/ops/jobs", "/ops/jobs/", "/ops/jobs/prod", "/ops/jobs/prod/"] {
        let found = crawl(&Browser(service.clone()), start).await;
        assert!(found.len() >= alone.len(), "{start}: {found:?}");
        assert!(found.iter().all(|page| page.starts_with("/ops/jobs")), "{found:?}");
    }
}
#[tokio::test(start_paused = true)]
async fn dashboard_of_a_storage_that_is_opened_later_takes_over() {
    let (away, staging) = (Faulty::new(&Storage::memory()), filled().await);
    away.plan_always(Operation::ListQueues, Fault::Refuse(StoreErrorKind::Unavailable));
    let (open, opened) = tokio::sync::oneshot::channel::<Storage>();
    let later = async move { Dashboard::new(operate(&opened.await.unwrap())) };
    let prod = Dashboard::new(operate(&away.storage())).until(later);
    let dashboards = [("prod", prod), ("staging", Dashboard::new(operate(&staging)))];
    let browser = Browser(Dashboard::join(dashboards).unwrap());
    let page = browser.get("/prod/").await;
    assert_eq!(page.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(page.text.contains("has not answered since"), "{}", page.text);
    assert!(page.text.contains("data-events=\"./events\""), "the page must load by itself: {}", page.text);
    assert_eq!(rows(&browser).await("prod")["dead_letters"], Value::Null);
    assert!(open.send(filled().await).is_ok());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(browser.page("/prod/dead").await.contains("<title>Dead letters · prod · jobqueue</title>"));
    assert!(browser.page("/prod/metrics").await.contains("jobqueue_queue_dead_letters{queue=\"mails\"} 1"));
    assert!(browser.page("/prod/scale").await.contains("\"dead\":1"));
    assert_eq!(rows(&browser).await("prod")["dead_letters"], 1);
}

#[tokio::test(start_paused = true)]
async fn storage_that_does_not_answer_is_unknown_and_delays_no_other() {
    let (prod, staging) = (filled().await, Faulty::new(&filled().await));
    let browser = joined([("prod", &prod), ("staging", &staging.storage())]);
    browser.page("/").await;
    assert_eq!(rows(&browser).await("staging")["dead_letters"], 1);
    let faults = [
        (Fault::Refuse(StoreErrorKind::Unavailable), "the storage does not answer"),
        (Fault::Hang, "no answer within"),
    ];
    for (fault, problem) in faults {
        staging.plan_always(Operation::ListQueues, fault);
        // By then the last successful read is too old, and the next read has failed.
        tokio::time::sleep(Duration::from_secs(90)).await;
        let began = Instant::now();
        let page = browser.page("/").await;
        assert!(began.elapsed() <= Duration::from_secs(1), "{:?}", began.elapsed());
        assert!(page.contains("./prod/dead\">1</a>") && page.contains(problem), "{page}");
        assert!(!page.contains("./staging/dead\">") && page.contains("data-label=\"Dead\">?</td>"), "{page}");
        let row = rows(&browser).await;
        assert_eq!(row("prod")["problem"], Value::Null);
        for unknown in ["queues", "unreadable", "waiting", "dead_letters", "oldest_seconds", "workers"] {
            assert_eq!(row("staging")[unknown], Value::Null, "{unknown}");
            assert_ne!(row("prod")[unknown], Value::Null, "{unknown}");
        }
        assert!(row("staging")["as_of"].is_string(), "the time of the last read");
    }
}

#[tokio::test(start_paused = true)]
async fn storage_that_never_answered_is_unknown() {
    let (prod, staging) = (filled().await, Faulty::new(&Storage::memory()));
    staging.plan_always(Operation::ListQueues, Fault::Hang);
    let browser = joined([("prod", &prod), ("staging", &staging.storage())]);
    let page = browser.page("/").await;
    assert!(
        page.contains("has not answered since this dashboard started") && page.contains("never"),
        "{page}"
    );
    assert!(page.contains("./prod/dead\">1</a>"), "{page}");
    assert_eq!(rows(&browser).await("staging")["as_of"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn storage_that_is_not_looked_at_is_not_read() {
    let (prod, staging) = (Faulty::new(&filled().await), Faulty::new(&filled().await));
    let browser = joined([("prod", &prod.storage()), ("staging", &staging.storage())]);
    browser.page("/prod/workers").await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    let readings = [&prod, &staging].map(|storage| storage.calls_of(Operation::ListQueues));
    assert_eq!(readings, [1, 0], "one read for the open page, and none since");
}

/// Returns a dashboard whose operator may enter the storages that the header `x-storages` names.
fn entered(storages: [&'static str; 3], storage: &Storage) -> Browser {
    let dashboards = storages.map(|name| {
        let dashboard = Dashboard::new(operate(storage)).access(move |parts| {
            let may_enter = |rights: &str| {
                parts.headers.get("x-storages").is_some_and(|all| {
                    all.to_str()
                        .is_ok_and(|all| all.split(' ').any(|right| right == format!("{rights}:{name}")))
                })
            };
            match (may_enter("change"), may_enter("look")) {
                (true, _) => Access::new("ada", AccessLevel::Operate),
                (_, true) => Access::read_only("ada"),
                _ => Access::forbidden(),
            }
        });
        (name, dashboard)
    });
    Browser(Dashboard::join(dashboards).unwrap())
}

#[tokio::test]
async fn access_to_a_storage_holds_for_its_own_pages() {
    let browser = entered(["prod", "staging", "vault"], &filled().await);
    let rights = ("x-storages", "look:prod change:staging");
    let get = async |path: &str| {
        browser.send(Request::get(path).header(rights.0, rights.1).body(Body::empty()).unwrap()).await
    };
    for path in ["/", "/api/storages", "/prod/overview", "/staging/dead"] {
        let answer = get(path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        assert!(!answer.text.contains("vault"), "{path}: {}", answer.text);
    }
    assert_eq!(get("/vault/overview").await.status, StatusCode::FORBIDDEN);
    let fields = [("queue", "mails")];
    for (path, status) in [
        ("/prod/do/pause", StatusCode::FORBIDDEN),
        ("/vault/do/pause", StatusCode::FORBIDDEN),
        ("/staging/do/pause", StatusCode::SEE_OTHER),
    ] {
        let post = form(path).header(rights.0, rights.1).header("sec-fetch-site", "same-origin");
        assert_eq!(browser.send(post.body(body(&fields)).unwrap()).await.status, status, "{path}");
        let forged = form(path).header(rights.0, rights.1).header("sec-fetch-site", "cross-site");
        let forged = browser.send(forged.body(body(&fields)).unwrap()).await;
        assert_eq!(forged.status, StatusCode::FORBIDDEN, "{path}");
    }
    for path in ["/", "/overview", "/api/storages", "/events", "/missing", "/prod/overview"] {
        assert_eq!(browser.get(path).await.status, StatusCode::FORBIDDEN, "{path}");
    }
}

#[tokio::test]
async fn page_of_all_storages_has_the_guards_of_the_others() {
    let storage = filled().await;
    let (queues, blobs) = (Arc::clone(storage.queues().store()), Arc::clone(storage.blobs()));
    let hostile = Admin::new(Storage::new(queues, blobs, "<script>x</script>"));
    let dashboards = [("prod", operate(&storage)), ("hostile", hostile)]
        .map(|(name, admin)| (name, Dashboard::new(admin).local_only(true).credentials("ada", "secret")));
    let browser = Browser(Dashboard::join(dashboards).unwrap());
    // `ada:secret` in base64.
    let ask = async |path: &str, host: &str, login: &str| {
        let request = Request::get(path).header("host", host).header("authorization", login);
        browser.0.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    };
    let has_headers = |headers: &HeaderMap| HEADERS.iter().all(|(name, value)| headers[*name] == *value);
    let asset = format!("/assets/{}", ASSETS.style.name);
    for path in ["/", "/overview", "/api/storages", "/events", &asset] {
        let answer = ask(path, "localhost", "Basic YWRhOnNlY3JldA==").await;
        assert!(answer.status() == StatusCode::OK && has_headers(answer.headers()), "{path}");
        let other_name = ask(path, "evil.example", "Basic YWRhOnNlY3JldA==").await;
        assert_eq!(other_name.status(), StatusCode::MISDIRECTED_REQUEST, "{path}");
        let wrong_password = ask(path, "localhost", "Basic YWRhOndyb25n").await;
        assert_eq!(wrong_password.status(), StatusCode::UNAUTHORIZED, "{path}");
        assert!(
            wrong_password.headers().contains_key("www-authenticate")
                && has_headers(wrong_password.headers()),
            "{path}"
        );
    }
    let login = |path| {
        Request::get(path).header("host", "localhost").header("authorization", "Basic YWRhOnNlY3JldA==")
    };
    let missing = browser.send(login("/api/queues").body(Body::empty()).unwrap()).await;
    assert!(
        missing.status == StatusCode::NOT_FOUND && missing.text.starts_with("{\"error\""),
        "{}",
        missing.text
    );
    let page = browser.send(login("/").body(Body::empty()).unwrap()).await.text;
    assert!(
        page.contains("&#60;script&#62;x") && !page.contains("<script>") && !page.contains(" style="),
        "{page}"
    );
    let missing = browser.send(login("/missing").body(Body::empty()).unwrap()).await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
    assert!(missing.text.contains("All storages") && !missing.text.contains("Schedules"), "{}", missing.text);
}

#[test]
fn invalid_or_reserved_names_are_refused() {
    let join = |names: &[&str]| {
        let dashboards = names.iter().map(|name| (*name, Dashboard::new(Admin::new(Storage::memory()))));
        Dashboard::join(dashboards).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(join(&["prod", "Eu-West_2", "0"]), Ok(()));
    for name in ["", "a/b", "..", "a b", "{queue}", "*", "ä", "a%2fb", &"x".repeat(64)] {
        assert!(join(&["prod", name]).unwrap_err().contains("ASCII letters"), "{name}");
    }
    for name in ["api", "assets", "events", "live", "metrics", "overview", "ready", "scale"] {
        assert!(join(&[name]).unwrap_err().contains("a path of the dashboard itself"), "{name}");
    }
    assert!(join(&["prod", "prod"]).unwrap_err().contains("two storages"));
    assert!(join(&[]).unwrap_err().contains("at least one"));
}
