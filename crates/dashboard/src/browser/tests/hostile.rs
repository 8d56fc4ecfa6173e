//! Hostile texts in messages.

use axum::http::StatusCode;
use jobqueue::Storage;
use jobqueue_admin::{Admin, RawSend};

use super::support::{Browser, filled, operate, reject_all};
use crate::browser::pages::rows::job_path;
use crate::browser::text::{MAX_BLOCK_BYTES, encoded};
use crate::{Dashboard, Field};

const HARM: &str =
    "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> \u{202e}txt.exe\u{200b} {{ 7*7 }} \u{1b}[2J";

async fn hostile() -> (Storage, Admin, String) {
    let storage = Storage::memory();
    let admin = operate(&storage);
    admin.create_queue("mails").await.unwrap();
    let event = serde_json::json!({
        "specversion": "1.0", "id": HARM, "source": "/evil?<script>", "type": "mail", "subject": HARM, "time": "2026-01-01T00:00:00Z",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "harm": HARM,
        "data": {"to": HARM, "more": "<b>".repeat(30_000)},
    });
    let sent = admin.send("mails", RawSend::event(&event.to_string()).unwrap()).await.unwrap();
    let path = format!("/{}", job_path("mails", sent.source.as_deref().unwrap(), HARM));
    (storage, admin, path)
}

fn assert_inert(page: &str, place: &str) {
    for text in ["<script>alert", "<img src=x", "<b><b>"] {
        assert!(!page.contains(text), "{place} contains {text:?}");
    }
    // The text of a field is not shown as a part of the page. A form sends it back exactly as it is.
    let (before, field) = page.split_once("<textarea").unwrap_or((page, ""));
    let page = format!("{before}{}", field.split_once("</textarea>").map_or("", |(_, after)| after));
    let mut parts = page.split(" value=\"");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    shown.extend(parts.map(|part| part.split_once('"').map_or(part, |(_, rest)| rest)));
    for text in ["\u{202e}", "\u{200b}", "\u{1b}"] {
        assert!(!shown.contains(text), "{place} shows {text:?}");
    }
}

#[tokio::test]
async fn harmful_texts_are_shown_and_do_nothing() {
    let (storage, _, job) = hostile().await;
    let browser = Browser::operating(&storage);
    let search = format!("/search?id={}", encoded(HARM));
    let mut pages = vec![];
    for path in [
        "/queues/mails".to_owned(),
        "/queues/mails/jobs".to_owned(),
        job.clone(),
        format!("{job}&show=content"),
        search.clone(),
    ] {
        pages.push((path.clone(), browser.page(&path).await));
    }
    reject_all(&storage).await;
    let browser = Browser::operating(&storage);
    let filter = format!("/queues/mails/dead?text={0}&kind={0}", encoded(HARM));
    for path in ["/queues/mails/dead".to_owned(), filter, job.clone(), format!("{job}&show=content"), search]
    {
        pages.push((path.clone(), browser.page(&path).await));
    }
    for (path, page) in &pages {
        assert_inert(page, path);
    }
    let dead = &pages.iter().find(|(path, _)| path == "/queues/mails/dead").unwrap().1;
    assert!(dead.contains("&#60;script&#62;alert(1)&#60;/script&#62;"), "{dead}");
    assert!(dead.contains("\\u{202e}txt.exe\\u{200b}") && dead.contains("\\u{1b}[2J"), "{dead}");
    let payload = &pages.last().unwrap().1;
    assert!(payload.len() < 20 * MAX_BLOCK_BYTES);
}

#[tokio::test]
async fn harmful_addresses_are_answered_without_harm() {
    let (storage, ..) = hostile().await;
    let browser = Browser::operating(&storage);
    let harm = encoded(HARM);
    for path in [
        format!("/queues/{harm}"),
        format!("/queues/{harm}/dead"),
        format!("/queues/{harm}/jobs"),
        format!("/queues/mails/jobs?state={harm}"),
        format!("/queues/mails/jobs?kind={harm}&key={harm}&error={harm}&batch={harm}"),
        format!("/job?queue={harm}&id={harm}"),
        format!("/job?queue=mails&id={harm}&source={harm}"),
        format!("/operations/{harm}"),
        format!("/batch?id={harm}"),
        format!("/search?id={harm}&queue={harm}&kind={harm}&outcome={harm}"),
        format!("/search?younger={harm}"),
        format!("/search?find={harm}"),
        format!("/throughput?queue={harm}"),
        format!("/send?queue={harm}"),
        format!("/?done={harm}"),
        format!("/{harm}"),
        "/job".to_owned(),
        "/job?queue=mails&id=%FF".to_owned(),
        "/queues/..%2f..%2fetc".to_owned(),
    ] {
        let answer = browser.get(&path).await;
        assert!(!answer.status.is_server_error(), "{path}: {}", answer.status);
        assert_inert(&answer.text, &path);
    }
    let sent = browser.post("/do/send", &[("queue", HARM), ("kind", HARM), ("payload", HARM)]).await;
    assert_eq!(sent.status, StatusCode::BAD_REQUEST);
    assert_inert(&sent.text, "/do/send");
}

#[tokio::test]
async fn payloads_are_hidden_and_large_ones_are_cut() {
    let (storage, _, job) = hostile().await;
    let browser = Browser::operating(&storage);
    let page = browser.page(&job).await;
    assert!(page.contains("Show the payload") && !page.contains("id=\"payload\""), "{page}");
    let page = browser.page(&format!("{job}&show=content")).await;
    assert!(page.contains("id=\"payload\"") && page.contains("more bytes are not shown"));
}

#[tokio::test]
async fn links_of_a_job_lead_to_the_pages_of_their_templates() {
    let (_, admin, job) = hostile().await;
    let dashboard = Dashboard::new(admin)
        .trace_url("https://traces.example/trace/{trace}".parse().unwrap())
        .log_url("https://logs.example/{queue}?id={id}".parse().unwrap())
        .redact(|_| Some("hidden".to_owned()));
    let page = Browser::new(dashboard).page(&job).await;
    assert_inert(&page, &job);
    let trace = r#"href="https://traces.example/trace/0af7651916cd43dd8448eb211c80319c""#;
    assert!(page.contains(trace), "{page}");
    assert!(page.contains(&format!(r#"href="https://logs.example/mails?id={}""#, encoded(HARM))), "{page}");
}

#[tokio::test]
async fn job_without_a_trace_has_no_link_to_one() {
    let storage = filled().await;
    let dashboard =
        Dashboard::new(operate(&storage)).trace_url("https://traces.example/{trace}".parse().unwrap());
    let page = Browser::new(dashboard).page("/job?queue=mails&id=none").await;
    assert!(!page.contains("traces.example"), "{page}");
}

#[tokio::test]
async fn redacted_texts_are_never_shown() {
    let (storage, admin, job) = hostile().await;
    reject_all(&storage).await;
    let dashboard = Dashboard::new(admin).redact(|shown| match shown.field {
        Field::Header(_) => None,
        _ => Some(format!("[{} hidden]", shown.kind.unwrap_or("unknown"))),
    });
    let browser = Browser::new(dashboard);
    let page = browser.page(&format!("{job}&show=content")).await;
    assert!(
        page.contains("[mail hidden]")
            && !page.contains("onerror=alert(2)&#62; \\u{202e}txt.exe\\u{200b}&quot;"),
        "{page}"
    );
    for path in [job.as_str(), "/queues/mails/dead", "/queues/mails/jobs", "/search"] {
        assert!(!browser.page(path).await.contains("no such address"), "{path}");
    }
    assert_eq!(browser.get("/queues/mails/dead?text=a").await.status, StatusCode::FORBIDDEN);
    assert_eq!(
        browser.post("/do/preview", &[("queue", "mails"), ("text", "a")]).await.status,
        StatusCode::FORBIDDEN
    );
}
