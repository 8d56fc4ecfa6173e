//! Checks the credentials, the origin and the access of every request, and sets the security headers of every
//! response.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{OriginalUri, Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use jobqueue_admin::Admin;

use crate::browser::app::{App, AuthorizedRequest, Joined, Place};
use crate::browser::base::base;
use crate::browser::page_error::PageError;
use crate::browser::{json, log, origin};

/// The headers of every response. Pages load nothing from other hosts, run only scripts that are files of the
/// dashboard, and cannot be framed.
pub(crate) const HEADERS: &[(&str, &str)] = &[
    (
        "content-security-policy",
        "default-src 'self'; base-uri 'none'; form-action 'self'; object-src 'none'; frame-ancestors 'none'",
    ),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    // Not `no-referrer`: browsers would then send `Origin: null`, as for requests from other sites.
    ("referrer-policy", "same-origin"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
];

/// Admits a request if its credentials, its origin and its access allow, and sets the headers of the
/// response.
pub(crate) async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let app = app.current();
    let admitted = admit(app, &parts).map(|mut admitted| {
        admitted.place = parts.extensions.get::<Arc<Joined>>().map(|joined| place(joined, app, &parts));
        admitted
    });
    log_refusal(app, admitted.as_ref().err(), &parts);
    respond(admitted, parts, body, next).await
}

/// Admits a request for a page of all storages if at least one of their dashboards does, and sets the headers
/// of the response.
pub(crate) async fn guard_all(State(joined): State<Arc<Joined>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let admitted = admit_to_any(&joined, &parts);
    if let Some((_, app)) = joined.0.first() {
        log_refusal(app.current(), admitted.as_ref().err(), &parts);
    }
    respond(admitted, parts, body, next).await
}

/// Logs a refusal of credentials. A browser sends its first request without any, and is asked for them.
fn log_refusal(app: &App, refusal: Option<&Response>, parts: &Parts) {
    let is_unauthorized = refusal.is_some_and(|refusal| refusal.status() == StatusCode::UNAUTHORIZED);
    if is_unauthorized && parts.headers.contains_key(AUTHORIZATION) {
        log::refused_login(app, parts);
    }
}

/// Passes on an admitted request, or responds with the refusal.
async fn respond<A: Clone + Send + Sync + 'static>(
    admitted: Result<A, Response>,
    mut parts: Parts,
    body: Body,
    next: Next,
) -> Response {
    let mut response = match admitted {
        Ok(admitted) => {
            parts.extensions.insert(admitted);
            next.run(Request::from_parts(parts, body)).await
        }
        Err(refusal) => refusal,
    };
    set_headers(response.headers_mut());
    response
}

/// The admitted request for each storage whose dashboard admits it, with the name of the storage.
pub(crate) type Admitted = Arc<[(String, AuthorizedRequest)]>;

#[allow(clippy::result_large_err, reason = "the error is the answer")]
fn admit_to_any(joined: &Joined, parts: &Parts) -> Result<Admitted, Response> {
    let (mut admitted, mut refusals) = (Vec::new(), Vec::new());
    for (name, app) in &joined.0 {
        match admit(app.current(), parts) {
            Ok(request) => admitted.push((name.clone(), request)),
            Err(refusal) => refusals.push(refusal),
        }
    }
    let names: Vec<String> = admitted.iter().map(|(name, _)| name.clone()).collect();
    for (_, request) in &mut admitted {
        request.place = Some(Place { here: None, names: names.clone() });
    }
    // Prefers 401, because browsers ask for a name and a password only after that status.
    refusals.sort_by_key(|refusal| refusal.status() != StatusCode::UNAUTHORIZED);
    match refusals.into_iter().next() {
        Some(refusal) if admitted.is_empty() => Err(refusal),
        _ => Ok(admitted.into()),
    }
}

/// Returns the place of the pages of `app`, with the names of all storages whose dashboards admit this
/// request.
fn place(joined: &Joined, app: &Arc<App>, parts: &Parts) -> Place {
    let is_here = |other: &Arc<App>| Arc::ptr_eq(other.current(), app);
    let names = joined.0.iter().filter(|(_, other)| is_here(other) || admit(other.current(), parts).is_ok());
    let here = joined.0.iter().find(|(_, other)| is_here(other));
    Place { here: here.map(|(name, _)| name.clone()), names: names.map(|(name, _)| name.clone()).collect() }
}

#[allow(clippy::result_large_err, reason = "the error is the answer")]
fn admit(app: &Arc<App>, parts: &Parts) -> Result<AuthorizedRequest, Response> {
    if app.local_only && !origin::is_for_this_machine(&parts.headers) {
        let text = "this dashboard answers only to the name `localhost` and to loopback addresses";
        return Err(refusal(parts, StatusCode::MISDIRECTED_REQUEST, text));
    }
    let admin = match app.logins.view_of_figures(&app.admin, parts) {
        Some(admin) => admin,
        None => view(app, parts)?,
    };
    let operator = admin.operator().escape_debug();
    if !origin::may_change(&parts.method, &parts.uri, &parts.headers) {
        let path = parts.uri.path().escape_debug();
        tracing::warn!(%operator, %path, "refused a change that another site may have sent");
        let text = "refused: this change does not come from a page of the dashboard, by its headers Sec-Fetch-Site, Origin \
            and Host; a proxy must forward the Host of the browser";
        return Err(refusal(parts, StatusCode::FORBIDDEN, text));
    }
    let original = parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |original| &original.0);
    let base = base(parts.uri.path(), original.path());
    Ok(AuthorizedRequest { app: Arc::clone(app), admin, base, place: None })
}

/// Returns the view of the operator who sends a request. The request needs a valid name and password if the
/// dashboard has logins, and the access function of the embedding program must admit it.
#[allow(clippy::result_large_err, reason = "the error is the answer")]
fn view(app: &App, parts: &Parts) -> Result<Admin, Response> {
    let admin = if app.logins.are_needed(app.resolver.is_set()) {
        app.logins.view(&app.admin, parts).ok_or_else(|| {
            let challenge = [(WWW_AUTHENTICATE, "Basic realm=\"jobqueue\", charset=\"UTF-8\"")];
            (challenge, refusal(parts, StatusCode::UNAUTHORIZED, "authentication required")).into_response()
        })?
    } else {
        app.admin.clone()
    };
    let forbidden = || refusal(parts, StatusCode::FORBIDDEN, "you have no access to this dashboard");
    app.resolver.view(&admin, parts).ok_or_else(forbidden)
}

/// Returns a refusal: JSON for the path of a document, and otherwise plain text.
fn refusal(parts: &Parts, status: StatusCode, text: &str) -> Response {
    if json::is_document(&parts.uri) {
        json::respond(Err(PageError::new(status, text)))
    } else {
        (status, format!("{text}\n")).into_response()
    }
}

fn set_headers(headers: &mut HeaderMap) {
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}
