//! The page of all storages, with one row for each.

use std::time::{Duration, SystemTime};

use askama::Template;
use axum::Extension;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::overview::Sums;
use super::{Layout, PageError, error_page, priced};
use crate::browser::app::AuthorizedRequest;
use crate::browser::guard::Admitted;
use crate::browser::looks::{Look, Unread};
use crate::browser::{filters, json};
use crate::snapshot::round;

/// The maximum wait for one storage. After that, its row shows the last look.
const STORAGE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Template)]
#[template(path = "storages.html")]
struct Storages<'a> {
    layout: Layout,
    rows: Vec<StorageRow<'a>>,
}

struct StorageRow<'a> {
    name: &'a str,
    description: &'a str,
    /// `None` if the storage does not answer, because outdated figures would mislead.
    known: Option<Known>,
    /// The reason why there are no figures; empty if there are.
    problem: String,
    /// The time of the last successful read.
    read: Option<SystemTime>,
    cost: Option<String>,
}

struct Known {
    look: Look,
    sums: Sums,
}

impl Known {
    /// Returns the age of the oldest job, which may back off, unlike that of a queue in `/api/queues` and
    /// `/scale`. `None` if it is not known exactly.
    fn oldest_seconds(&self) -> Option<f64> {
        let oldest = self.sums.oldest;
        oldest.is_exact.then(|| round(oldest.age.unwrap_or_default().as_secs_f64()))
    }
}

impl<'a> StorageRow<'a> {
    async fn read((name, request): &'a (String, AuthorizedRequest)) -> Self {
        let row = Self {
            name,
            description: request.admin.storage().description(),
            known: None,
            problem: String::new(),
            read: None,
            cost: None,
        };
        match request.app.looks.latest_within(STORAGE_TIMEOUT).await {
            Err(unread @ Unread(_)) => Self { problem: PageError::from(unread).into_parts().1, ..row },
            Ok(Look { figures, error: Some(reason) }) => Self {
                problem: format!("the storage does not answer: {reason}"),
                read: Some(figures.as_of.into()),
                ..row
            },
            Ok(look) => Self {
                read: Some(look.at()),
                cost: priced(&look, request),
                known: Some(Known { sums: Sums::of(&look), look }),
                ..row
            },
        }
    }

    fn document(&self) -> Value {
        let read = self.read.and_then(|at| jiff::Timestamp::try_from(at).ok());
        let known = self.known.as_ref();
        json!({
            "name": self.name,
            "storage": self.description,
            "as_of": read.map(|at| at.to_string()),
            "problem": Some(&self.problem).filter(|problem| !problem.is_empty()),
            "queues": known.map(|known| known.look.queues().len()),
            "unreadable": known.map(|known| &known.look.figures.unreadable),
            "waiting": known.and_then(|known| known.sums.waiting.whole()),
            "dead_letters": known.and_then(|known| known.sums.dead.whole()),
            "oldest_seconds": known.and_then(Known::oldest_seconds),
            "workers": known.and_then(|known| known.sums.workers),
        })
    }
}

/// Reads all storages concurrently.
async fn rows(all: &Admitted) -> Vec<StorageRow<'_>> {
    join_all(all.iter().map(StorageRow::read)).await
}

pub(crate) async fn show(Extension(all): Extension<Admitted>) -> Response {
    let Some((_, request)) = all.first() else { return StatusCode::NOT_FOUND.into_response() };
    let mut layout = Layout::new(request, "", "Storages");
    layout.events = Some("events".to_owned());
    let page = Storages { layout, rows: rows(&all).await };
    match page.render() {
        Ok(html) => Html(html).into_response(),
        Err(error) => error_page(request, error.into()),
    }
}

/// Returns the rows as JSON. A figure is null unless all its parts are known.
pub(crate) async fn document(Extension(all): Extension<Admitted>) -> Response {
    let storages: Vec<Value> = rows(&all).await.iter().map(StorageRow::document).collect();
    json::respond(Ok(json!({ "storages": storages }).to_string()))
}
