//! The page of a change that was refused or failed: its form again, with what the operator has typed.

use askama::Template;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use jobqueue::QueueName;

use super::{Layout, PageError, error_page};
use crate::browser::app::AuthorizedRequest;
use crate::browser::selection::query;
use crate::browser::text::{Timed, error_text};

/// The fields into which operators type, each with its label, by the path of the change.
const TYPED: &[(&str, &[(&str, &str)])] = &[
    ("/do/create-queue", &[("queue", "Name")]),
    (
        "/do/pause",
        &[
            ("for", "For (empty: until it is resumed)"),
            // The script has sent the time in UTC.
            ("until", "Or until, with its zone (2026-11-22T15:00Z is UTC)"),
            ("note", "Note"),
        ],
    ),
    ("/do/settings", &[("name", "Setting"), ("value", "Value (empty: the default)")]),
    (
        "/do/send",
        &[
            ("queue", "Queue"),
            ("kind", "Kind"),
            ("payload", "Payload (JSON)"),
            ("delay", "Delay (for example 10m; empty: none)"),
            ("version", "Version of the payload (empty: the newest that fits)"),
            ("key", "Key"),
            ("source", "Sender (empty: /jobqueue/admin)"),
            ("contenttype", "Media type of the payload (empty: application/json)"),
            ("id", "Id (empty: a new one)"),
            ("ofid", "Trace and headers of the job with this id (empty: none)"),
        ],
    ),
    (
        "/do/redrive",
        &[
            ("rate", "Maximum per second (empty: no limit)"),
            ("limit", "Only the first (empty: all)"),
            ("canary", "Canary: the number of jobs to put back first"),
        ],
    ),
];

/// A form as it was sent.
#[derive(Debug)]
pub(crate) struct SentForm {
    path: &'static str,
    /// The fields in the address.
    address: Vec<(String, String)>,
    fields: Vec<(String, String)>,
}

#[derive(Template)]
#[template(path = "refused.html")]
struct RefusedPage<'a> {
    layout: Layout,
    text: Timed,
    /// True if the change may have been made although the request failed.
    is_uncertain: bool,
    /// The path of the change from the root of the dashboard, with the fields in its address.
    action: String,
    typed: Vec<TypedField<'a>>,
    hidden: Vec<&'a (String, String)>,
    /// The queue of the change.
    queue: Option<&'a str>,
}

struct TypedField<'a> {
    name: &'static str,
    label: &'static str,
    value: &'a str,
}

impl SentForm {
    pub(crate) fn new(
        path: &'static str,
        address: &[(String, String)],
        fields: Option<&Vec<(String, String)>>,
    ) -> Self {
        Self { path, address: address.to_vec(), fields: fields.cloned().unwrap_or_default() }
    }

    /// Returns the names and the labels of the typed fields.
    fn labels(&self) -> &'static [(&'static str, &'static str)] {
        TYPED.iter().find(|(path, _)| *path == self.path).map(|(_, labels)| *labels).unwrap_or_default()
    }

    fn value(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(sent, _)| sent.as_str() == name);
        found.map(|(_, value)| value.as_str())
    }

    fn typed(&self) -> Vec<TypedField<'_>> {
        let labels = self.labels().iter();
        labels
            .filter_map(|&(name, label)| Some(TypedField { name, label, value: self.value(name)? }))
            .collect()
    }

    fn hidden(&self) -> Vec<&(String, String)> {
        let is_typed = |sent: &str| self.labels().iter().any(|(name, _)| *name == sent);
        self.fields.iter().filter(|(sent, _)| !is_typed(sent.as_str())).collect()
    }

    fn action(&self) -> String {
        let address = self.address.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        format!("{}{}", self.path.trim_start_matches('/'), query(address))
    }

    /// Returns the queue of the change, if a queue can have this name.
    fn queue(&self) -> Option<&str> {
        let mut all = self.address.iter().chain(&self.fields);
        let (_, queue) = all.find(|(name, _)| name == "queue")?;
        QueueName::new(queue.as_str()).is_ok().then_some(queue.as_str())
    }
}

/// Returns the page of a change that failed. If nothing was typed, it is the page of the error.
pub(crate) fn refused_page(request: &AuthorizedRequest, error: PageError, form: &SentForm) -> Response {
    let typed = form.typed();
    if error.status() == StatusCode::FORBIDDEN || typed.iter().all(|field| field.value.is_empty()) {
        return error_page(request, error);
    }
    let (status, text) = error.into_parts();
    let page = RefusedPage {
        layout: Layout::new(request, "", status.canonical_reason().unwrap_or("Error")),
        text: Timed::of(&error_text(&text)),
        is_uncertain: status.is_server_error(),
        action: form.action(),
        typed,
        hidden: form.hidden(),
        queue: form.queue(),
    };
    match page.render() {
        Ok(html) => (status, Html(html)).into_response(),
        Err(_) => status.into_response(),
    }
}
