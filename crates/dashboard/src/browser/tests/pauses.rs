//! The end of a pause on the page of a queue.

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
