//! A storage with a waiting job and a dead letter, and a browser for its dashboard.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use jobqueue::{JobError, QueueMessage, Storage, Worker};
use jobqueue_admin::{AccessLevel, Admin, RawSend};
use serde::{Deserialize, Serialize};
use tower::ServiceExt;

use crate::Dashboard;
use crate::browser::text::encoded;

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail")]
pub(super) struct Mail {
    pub(super) to: String,
}

/// Returns the view of an operator with all rights.
pub(super) fn operate(storage: &Storage) -> Admin {
    Admin::builder(storage.clone()).access(AccessLevel::Operate).operator("ada").build()
}

/// Returns a storage whose queue `mails` has a dead letter `dead` and a job `waiting`.
pub(super) async fn filled() -> Storage {
    let storage = Storage::memory();
    let admin = operate(&storage);
    admin.create_queue("mails").await.unwrap();
    send(&admin, "dead").await;
    reject_all(&storage).await;
    send(&admin, "waiting").await;
    storage
}

pub(super) async fn send(admin: &Admin, id: &str) {
    let mail = RawSend::json("mail", r#"{"to":"bob@example.org"}"#).unwrap().id(id);
    admin.send("mails", mail).await.unwrap();
}

/// Lets a worker reject all waiting mails.
pub(super) async fn reject_all(storage: &Storage) {
    let handler = |mail: Mail| async move {
        Err::<(), _>(JobError::dead_letter(format!("no such address: {}", mail.to)))
    };
    let worker = Worker::builder(storage.clone()).handle(handler).build().unwrap();
    let _ = worker.run_until_idle().await.unwrap();
}

#[derive(Debug)]
pub(super) struct PageResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) text: String,
}

impl PageResponse {
    pub(super) fn location(&self) -> &str {
        self.headers["location"].to_str().unwrap()
    }
}

/// A client of a dashboard.
#[derive(Clone)]
pub(super) struct Browser(pub(super) Router);

impl Browser {
    pub(super) fn new(dashboard: Dashboard) -> Self {
        Self(dashboard.router())
    }

    pub(super) fn operating(storage: &Storage) -> Self {
        Self::new(Dashboard::new(operate(storage)))
    }

    pub(super) async fn send(&self, request: Request<Body>) -> PageResponse {
        let response = self.0.clone().oneshot(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        PageResponse { status, headers, text: String::from_utf8(body.to_vec()).unwrap() }
    }

    pub(super) async fn get(&self, path: &str) -> PageResponse {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub(super) async fn page(&self, path: &str) -> String {
        let answer = self.get(path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text);
        answer.text
    }

    /// Sends a form with the headers of a page of the dashboard.
    pub(super) async fn post(&self, path: &str, fields: &[(&str, &str)]) -> PageResponse {
        self.send(form(path).header("sec-fetch-site", "same-origin").body(body(fields)).unwrap()).await
    }
}

pub(super) fn form(path: &str) -> axum::http::request::Builder {
    Request::builder()
        .method(Method::POST)
        .uri(path)
        .header("content-type", "application/x-www-form-urlencoded")
}

pub(super) fn body(fields: &[(&str, &str)]) -> Body {
    let pairs = fields.iter().map(|(name, value)| format!("{name}={}", encoded(value)));
    Body::from(pairs.collect::<Vec<_>>().join("&"))
}
