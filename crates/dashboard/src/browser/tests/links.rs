//! Tests that links work wherever the dashboard is nested.

use std::collections::BTreeSet;

use axum::Router;
use axum::http::StatusCode;

use super::support::{Browser, filled, operate};
use crate::Dashboard;

/// Resolves a relative reference against a path, as a browser does.
fn resolve(from: &str, link: &str) -> String {
    let path = from.split(['?', '#']).next().unwrap_or_default();
    let link = link.split('#').next().unwrap_or_default();
    if link.is_empty() {
        return from.to_owned();
    }
    if link.starts_with('?') {
        return format!("{path}{link}");
    }
    let (link, query) =
        link.split_once('?').map_or((link, String::new()), |(link, query)| (link, format!("?{query}")));
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let path = parts.join("/");
    // A reference that ends in a dot segment names a folder.
    let slash = if link.ends_with("..") || link == "." { "/" } else { "" };
    format!("{path}{slash}{query}")
}

fn links(page: &str) -> Vec<String> {
    let mut links = Vec::new();
    for attribute in ["href=\"", "src=\"", "action=\"", "data-events=\""] {
        let values = page.split(attribute).skip(1).map(|rest| rest.split('"').next().unwrap_or_default());
        links.extend(values.map(|value| value.replace("&amp;", "&").replace("&#38;", "&")));
    }
    links
}

/// Follows all links from `start`, and returns the pages.
pub(super) async fn crawl(browser: &Browser, start: &str) -> BTreeSet<String> {
    let (mut seen, mut todo) = (BTreeSet::new(), vec![start.to_owned()]);
    while let Some(path) = todo.pop() {
        if !seen.insert(path.clone()) || path.ends_with("/events") {
            continue;
        }
        let answer = browser.get(&path).await;
        if path.contains("/do/") {
            assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{path}");
            continue;
        }
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        for link in links(&answer.text) {
            assert!(!link.starts_with('/') && !link.contains("//"), "{path} links to {link}");
            todo.push(resolve(&path, &link));
        }
    }
    seen
}

#[tokio::test]
async fn all_links_lead_somewhere_under_any_path() {
    let storage = filled().await;
    let alone = Browser::operating(&storage);
    let pages = crawl(&alone, "/").await;
    for wanted in ["/workers", "/queues/mails", "/queues/mails/dead", "/send?queue=mails"] {
        assert!(pages.contains(wanted), "{wanted}: {pages:?}");
    }
    assert!(pages.iter().any(|page| page.starts_with("/job?queue=mails&id=dead")), "{pages:?}");
    let service = Router::new().nest_service("/ops/jobs", Dashboard::new(operate(&storage)).router());
    let nested = Router::new().nest("/ops/jobs", Dashboard::new(operate(&storage)).router());
    for (router, start) in [(&service, "/ops/jobs/"), (&service, "/ops/jobs"), (&nested, "/ops/jobs")] {
        let found = crawl(&Browser(router.clone()), start).await;
        assert!(found.len() >= pages.len(), "{start}: {found:?}");
        assert!(found.iter().all(|page| page.starts_with("/ops/jobs")), "{found:?}");
    }
}

#[tokio::test]
async fn answers_to_changes_lead_back_under_any_path() {
    let storage = filled().await;
    let router = Router::new().nest_service("/ops/jobs", Dashboard::new(operate(&storage)).router());
    let browser = Browser(router);
    let answer = browser.post("/ops/jobs/do/pause", &[("queue", "mails")]).await;
    let target = resolve("/ops/jobs/do/pause", answer.location());
    assert_eq!(target, "/ops/jobs/queues/mails?done=paused");
    assert!(browser.page(&target).await.contains("Paused."));
}

// newcomers, O21: pages of jobs and queues seemed to be the overview.
#[tokio::test]
async fn navigation_marks_the_page_that_is_open() {
    let browser = Browser::operating(&filled().await);
    let pages = [
        ("/", Some("overview")),
        ("/queues/mails", None),
        ("/queues/mails/jobs", None),
        ("/job?queue=mails&id=dead", None),
        ("/throughput", None),
        ("/queues/mails/dead", Some("dead")),
    ];
    for (path, marked) in pages {
        let page = browser.page(path).await;
        // Lists by state have a navigation of their own.
        let navigation = page.split_once("<main").unwrap().0;
        let before = navigation.split_once("\" aria-current=\"page\"").map(|(before, _)| before);
        let link = before.and_then(|before| before.rsplit(['"', '/']).next());
        assert_eq!(link, marked, "{path}");
    }
}
