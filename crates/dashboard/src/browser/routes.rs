//! All routes, as tables from which the router and the tests are built.

use std::sync::Arc;

use axum::extract::rejection::FormRejection;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, Query, RawPathParams, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Form, Router, middleware};
use futures_util::future::BoxFuture;
use jobqueue::QueueName;
use jobqueue_admin::Action;

use crate::browser::app::{App, AuthorizedRequest};
use crate::browser::fields::Fields;
use crate::browser::pages::refused::{SentForm, refused_page};
use crate::browser::pages::{
    self, Answer, PageError, batches, dead, enqueue, job, jobs, operation, operation_document, overview,
    queue, schedules, search, throughput, workers,
};
use crate::browser::{assets, guard, json, live};
use crate::metrics::metrics;
use crate::scale::{ScaleQuery, Target, scale};

/// The maximum size of a form. Its payload is percent-encoded, so that a megabyte of any bytes fits.
const MAX_FORM_BYTES: usize = 4 * 1024 * 1024;

/// The fields of a query or a form.
type Pairs = Vec<(String, String)>;

type Handler = fn(AuthorizedRequest, Fields) -> BoxFuture<'static, Result<Answer, PageError>>;

type Reader = fn(AuthorizedRequest, Fields) -> BoxFuture<'static, json::Document>;

#[derive(Clone, Copy)]
pub(crate) struct Page {
    pub(crate) path: &'static str,
    show: Handler,
}

/// A JSON document for programs.
#[derive(Clone, Copy)]
pub(crate) struct Document {
    pub(crate) path: &'static str,
    /// The fields of its query. Any other field is refused.
    pub(crate) fields: &'static [&'static str],
    read: Reader,
}

/// A change: the answer to a POST.
#[derive(Clone, Copy)]
pub(crate) struct Change {
    pub(crate) path: &'static str,
    /// The actions of which the operator must be allowed at least one.
    pub(crate) needs: &'static [Action],
    /// The fields of its form. Any other field is refused, because a misspelt field would not restrict the
    /// change.
    fields: &'static [&'static str],
    apply: Handler,
}

macro_rules! pages {
    ($($path:literal => $handler:path),* $(,)?) => {
        &[$(Page { path: $path, show: |request, fields| Box::pin($handler(request, fields)) }),*]
    };
}

macro_rules! documents {
    ($($path:literal, $fields:expr => $reader:path),* $(,)?) => {
        &[$(Document {
            path: $path,
            fields: &$fields,
            read: |request, fields| Box::pin($reader(request, fields)),
        }),*]
    };
}

macro_rules! changes {
    ($($path:literal, [$($action:ident),+], $fields:expr => $handler:path),* $(,)?) => {
        &[$(Change {
            path: $path,
            needs: &[$(Action::$action),+],
            fields: &$fields,
            apply: |request, fields| Box::pin($handler(request, fields)),
        }),*]
    };
}

pub(crate) const PAGES: &[Page] = pages![
    "/" => overview::show,
    // `Router::nest` does not match the root with a slash, so no page links to it.
    "/overview" => overview::show,
    "/queues/{queue}" => queue::show,
    "/queues/{queue}/dead" => dead::of_queue,
    "/queues/{queue}/jobs" => jobs::show,
    "/dead" => dead::all,
    "/job" => job::show,
    "/operations/{operation}" => operation::show,
    "/workers" => workers::show,
    "/throughput" => throughput::show,
    "/schedules" => schedules::show,
    "/batches" => batches::all,
    "/batch" => batches::one,
    "/search" => search::show,
    // The page is called `History` in the navigation.
    "/history" => search::show,
    "/send" => enqueue::show,
];

/// The documents. Their prefix keeps their paths apart from the names of queues.
pub(crate) const DOCUMENTS: &[Document] = documents![
    "/api/queues", [] => json::queues,
    "/api/explain", ["queue"] => json::explain,
    "/api/workers", [] => json::workers,
    "/api/peek", ["queue"] => json::peek,
    "/api/jobs", ["queue", "state", "id", "source", "key", "kind", "error", "batch", "from", "limit"] => json::jobs,
    "/api/groups", ["queue"] => json::groups,
    "/api/dead", ["queue", "kind", "key", "reason", "text", "error", "id", "source", "older", "younger", "from"] => json::dead,
    "/api/job", ["queue", "id", "source"] => json::job,
    "/api/history", ["queue", "id", "key", "kind", "outcome", "error", "younger", "since", "until"] => json::history,
    "/api/schedules", [] => json::schedules,
    "/api/batches", [] => json::batches,
    "/api/batch", ["id"] => json::batch,
    "/api/leaders", [] => json::leaders,
    "/api/operation", ["id"] => operation_document::show,
    "/api/throughput", [] => json::throughput,
];

/// The changes. Their prefix keeps their paths apart from the names of queues.
pub(crate) const CHANGES: &[Change] = changes![
    "/do/create-queue", [CreateQueue], ["queue"] => queue::create,
    "/do/pause", [Pause], ["queue", "for", "until", "note", "replace", "pause"] => queue::pause,
    "/do/resume", [Resume], ["queue", "shown", "pause"] => queue::resume,
    "/do/settings", [ChangeSettings], ["queue", "name", "value"] => queue::settings_change,
    "/do/send", [Send], ["queue", "kind", "payload", "delay", "version", "key", "id", "source", "contenttype", "ofid", "ofqueue", "ofsource"] => enqueue::send,
    "/do/cancel", [Cancel], ["plan", "queue", "id", "source"] => job::cancel,
    "/do/run-now", [RunNow], ["plan", "queue", "id", "source"] => job::run_now,
    "/do/preview-jobs", [Cancel, RunNow], ["queue", "kind", "key", "error", "batch"] => jobs::preview,
    "/do/preview-selected-jobs", [Cancel, RunNow], ["queue", "selected"] => jobs::preview_selected,
    "/do/preview", [Inspect], ["queue", "kind", "key", "reason", "text", "error", "id", "source", "older", "younger"] => dead::preview,
    "/do/preview-selected", [Inspect], ["queue", "before", "selected"] => dead::preview_selected,
    "/do/redrive", [Redrive], ["plan", "rate", "limit", "canary", "queue", "id", "source", "message", "before"] => dead::redrive,
    "/do/purge", [Purge], ["plan", "confirm", "queue", "id", "source", "message", "before"] => dead::purge,
    "/do/stop", [Inspect, Redrive, Purge, Cancel, RunNow], ["operation"] => operation::stop,
    "/do/trigger-schedule", [TriggerSchedule], ["schedule"] => schedules::trigger,
    "/do/pause-schedule", [PauseSchedule], ["schedule"] => schedules::pause,
    "/do/resume-schedule", [ResumeSchedule], ["schedule"] => schedules::resume,
];

pub(crate) fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for page in PAGES {
        let page = *page;
        let handler = move |request: AuthorizedRequest, Values(fields): Values| async move {
            let shown = (page.show)(request.clone(), fields).await;
            respond(&request, shown.map_err(PageError::of_page))
        };
        router = router.route(page.path, get(handler));
    }
    for document in DOCUMENTS {
        let document = *document;
        let handler = move |request: AuthorizedRequest, Query(query): Query<Pairs>| async move {
            json::respond(match Fields::of_known(query, document.fields) {
                Ok(fields) => (document.read)(request, fields).await,
                Err(problem) => Err(PageError::invalid(problem)),
            })
        };
        router = router.route(document.path, get(handler));
    }
    for change in CHANGES {
        let change = *change;
        let handler = move |request: AuthorizedRequest,
                            Query(query): Query<Pairs>,
                            form: Result<Form<Pairs>, FormRejection>| async move {
            let sent = SentForm::new(change.path, &query, form.as_ref().ok().map(|Form(values)| values));
            match apply_change(change, &request, query, form).await {
                Err(error) => refused_page(&request, error, &sent),
                answer => respond(&request, answer),
            }
        };
        router = router.route(change.path, post(handler));
    }
    let events = |request: AuthorizedRequest, Values(fields): Values| live::events(request, fields);
    let figures =
        |request: AuthorizedRequest| async move { metrics(State(request.app.snapshots.clone())).await };
    let sizes = |request: AuthorizedRequest, query: Query<ScaleQuery>| async move {
        scale(State((request.app.snapshots.clone(), Target::new())), query).await
    };
    let asset = |Path(name): Path<String>| async move { assets::serve(&name) };
    router
        .route("/events", get(events))
        .route("/assets/{name}", get(asset))
        .route("/metrics", get(figures))
        .route("/scale", get(sizes))
        .fallback(missing)
        .layer(DefaultBodyLimit::max(MAX_FORM_BYTES))
        .layer(middleware::from_fn_with_state(app, guard::guard))
}

async fn missing(request: AuthorizedRequest, address: Uri) -> Response {
    if json::is_document(&address) {
        json::respond(Err(PageError::missing("there is no such document")))
    } else {
        respond(&request, Err(PageError::missing("there is no such page")))
    }
}

async fn apply_change(
    change: Change,
    request: &AuthorizedRequest,
    query: Pairs,
    form: Result<Form<Pairs>, FormRejection>,
) -> Result<Answer, PageError> {
    let access = request.admin.access();
    if !change.needs.iter().any(|action| access.allows(*action)) {
        let posted = form.iter().flat_map(|Form(values)| values);
        let queue = query.iter().chain(posted).find(|(name, _)| *name == "queue");
        // Records only a valid name, because a refused form may have megabytes.
        let named = |queue: &String| {
            QueueName::new(queue.as_str()).map_or("an invalid name".to_owned(), |name| name.to_string())
        };
        let queue = queue.map(|(_, queue)| format!(" for queue {}", named(queue))).unwrap_or_default();
        // Reports the refusal to the listeners for audit events.
        if let Some(action) = change.needs.first() {
            request.admin.require(*action, &format!("{}{queue}", change.path))?;
        }
        return Err(PageError::forbidden("your access does not include this change"));
    }
    let Form(values) = form.map_err(|rejection| PageError::new(rejection.status(), rejection.body_text()))?;
    let fields = Fields::of_known(query.into_iter().chain(values), change.fields)
        .map_err(|problem| PageError::invalid(format!("nothing was changed: {problem}")))?;
    let answer = (change.apply)(request.clone(), fields).await;
    // Also after an error, because the change may have been applied.
    request.app.changed();
    answer
}

fn respond(request: &AuthorizedRequest, answer: Result<Answer, PageError>) -> Response {
    match answer {
        Ok(Answer::Page(html)) => Html(html).into_response(),
        Ok(Answer::Go(target)) => match HeaderValue::from_str(&format!("{}{target}", request.base)) {
            Ok(location) => (StatusCode::SEE_OTHER, [(header::LOCATION, location)]).into_response(),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        },
        Err(error) => pages::error_page(request, error),
    }
}

/// The fields of the query and the path of a request.
struct Values(Fields);

impl<S: Send + Sync> FromRequestParts<S> for Values {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, StatusCode> {
        let bad = StatusCode::BAD_REQUEST;
        let query = Query::<Pairs>::from_request_parts(parts, state).await.map_err(|_| bad)?;
        let mut fields = Fields::new(query.0);
        let path = RawPathParams::from_request_parts(parts, state).await.map_err(|_| bad)?;
        for (name, value) in &path {
            fields.insert(name, value);
        }
        Ok(Self(fields))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for AuthorizedRequest {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, StatusCode> {
        let request = Extension::<Self>::from_request_parts(parts, state).await;
        request.map(|Extension(request)| request).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
    }
}
