//! Pauses on the page of a queue, and their ends.

use std::time::SystemTime;

use axum::http::StatusCode;

use super::changes::mails;
use super::support::{Browser, filled};

#[tokio::test]
async fn page_ends_the_pause_that_it_shows_and_no_other() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    let pause = async |fields: &[(&str, &str)]| {
        assert_eq!(browser.post("/do/pause", fields).await.location(), "../queues/mails?done=paused");
        let page = browser.page("/queues/mails").await;
        let (_, form) = page.split_once("do/resume").unwrap();
        let (form, _) = form.split_once("</form>").unwrap();
        assert!(form.contains("name=\"shown\""), "{form}");
        let (_, shown) = form.split_once("name=\"pause\" value=\"").unwrap();
        shown.split('"').next().unwrap().to_owned()
    };
    let former = pause(&[("queue", "mails"), ("note", "deploy")]).await;
    let another = [("queue", "mails"), ("note", "a migration"), ("replace", "1"), ("pause", &former)];
    let shown = pause(&another).await;
    let resume = async |shown: &str| {
        browser.post("/do/resume", &[("queue", "mails"), ("shown", "1"), ("pause", shown)]).await
    };
    assert_eq!(resume(&former).await.status, StatusCode::CONFLICT);
    assert_eq!(mails(&storage).await.paused, Some(true));
    assert_eq!(resume(&shown).await.location(), "../queues/mails?done=resumed-unserved");
    assert_eq!(mails(&storage).await.paused, Some(false));
}

#[tokio::test]
async fn pause_ends_at_the_time_of_its_form() {
    let storage = filled().await;
    let browser = Browser::operating(&storage);
    assert!(browser.page("/queues/mails").await.contains("name=\"until\" data-time"));
    // A time without a zone is not guessed, and a length does not replace an end unnoticed.
    for (until, length) in [("2999-11-22 15:00", ""), ("2999-11-22T15:00Z", "2h"), ("2001-01-01T00:00Z", "")]
    {
        let fields = [("queue", "mails"), ("until", until), ("for", length)];
        let refused = browser.post("/do/pause", &fields).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{until} {length}");
        assert!(refused.text.contains(&format!("value=\"{until}\"")), "{}", refused.text);
        assert_eq!(mails(&storage).await.paused, Some(false));
    }
    let paused = browser.post("/do/pause", &[("queue", "mails"), ("until", "2999-11-22T15:00Z")]).await;
    assert_eq!(paused.location(), "../queues/mails?done=paused");
    let until: jiff::Timestamp = "2999-11-22T15:00:00Z".parse().unwrap();
    assert_eq!(mails(&storage).await.pause.unwrap().until, Some(SystemTime::from(until)));
}

/// Returns the part of a page that a refresh replaces.
fn live(page: &str) -> &str {
    let (_, rest) = page.split_once("<div id=\"live\">").unwrap();
    let mut depth = 1;
    for (at, _) in rest.match_indices("div") {
        let before = &rest[..at];
        depth += i32::from(before.ends_with('<')) - i32::from(before.ends_with("</"));
        if depth == 0 {
            return before;
        }
    }
    panic!("the part has no end: {page}");
}

// D16: a colleague's pause changed the figures of an open page, and neither its buttons nor its settings.
#[tokio::test]
async fn buttons_and_settings_are_refreshed_with_the_figures() {
    let browser = Browser::operating(&filled().await);
    let page = browser.page("/queues/mails").await;
    assert!(live(&page).contains("do/pause"), "{page}");
    assert!(live(&page).contains("<h2>Settings</h2>"), "{page}");
}
