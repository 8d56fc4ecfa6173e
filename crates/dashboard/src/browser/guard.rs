//! Checks every request and completes every answer: credentials, origin, access, headers.

use std::sync::Arc;

use axum::extract::{OriginalUri, Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use jobqueue_admin::Admin;

use crate::browser::app::{App, AuthorizedRequest};
use crate::browser::base::base;
use crate::browser::pages::PageError;
use crate::browser::{json, origin};

/// The headers of every answer. Nothing is loaded from elsewhere, nothing runs that is not a file of the dashboard, and no other
/// page frames it.
pub(crate) const HEADERS: &[(&str, &str)] = &[
    (
        "content-security-policy",
        "default-src 'self'; base-uri 'none'; form-action 'self'; object-src 'none'; frame-ancestors 'none'",
    ),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    // Not `no-referrer`: with it browsers send `Origin: null`, which is how requests of other sites look.
    ("referrer-policy", "same-origin"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
];

/// Lets a request through if its credentials, its origin and its access allow, and sets the headers of the answer.
pub(crate) async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let mut response = match admit(&app, request) {
        Ok(request) => next.run(request).await,
        Err(refusal) => refusal,
    };
    set_headers(response.headers_mut());
    response
}

#[allow(clippy::result_large_err, reason = "the error is the answer")]
fn admit(app: &Arc<App>, request: Request) -> Result<Request, Response> {
    let (mut parts, body) = request.into_parts();
    if app.local_only && !origin::is_for_this_machine(&parts.headers) {
        let text = "this dashboard answers only to the name `localhost` and to loopback addresses";
        return Err(refusal(&parts, StatusCode::MISDIRECTED_REQUEST, text));
    }
    let admin = match app.logins.view_of_figures(&app.admin, &parts) {
        Some(admin) => admin,
        None => view(app, &parts)?,
    };
    let operator = admin.operator().escape_debug();
    if !origin::may_change(&parts.method, &parts.uri, &parts.headers) {
        let path = parts.uri.path().escape_debug();
        tracing::warn!(%operator, %path, "refused a change that another site may have sent");
        let text = "refused: this change does not come from a page of the dashboard (Sec-Fetch-Site, Origin and Host of the request \
            say so); a proxy must pass the Host of the browser on";
        return Err(refusal(&parts, StatusCode::FORBIDDEN, text));
    }
    let original = parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |original| &original.0);
    let base = base(parts.uri.path(), original.path());
    let request = AuthorizedRequest { app: Arc::clone(app), admin, base };
    parts.extensions.insert(request);
    Ok(Request::from_parts(parts, body))
}

/// Returns the view of who sends a request: the name and the password must be right, where they are needed, and the program that embeds the
/// dashboard must let the request in.
#[allow(clippy::result_large_err, reason = "the error is the answer")]
fn view(app: &App, parts: &Parts) -> Result<Admin, Response> {
    let admin = match app.logins.are_needed(app.resolver.is_set()) {
        true => app.logins.view(&app.admin, parts).ok_or_else(|| {
            if parts.headers.contains_key(AUTHORIZATION) {
                tracing::warn!(path = %parts.uri.path().escape_debug(), "refused a wrong name, password or token");
            }
            let challenge = [(WWW_AUTHENTICATE, "Basic realm=\"jobqueue\", charset=\"UTF-8\"")];
            (challenge, refusal(parts, StatusCode::UNAUTHORIZED, "name and password, please")).into_response()
        })?,
        false => app.admin.clone(),
    };
    let forbidden = || refusal(parts, StatusCode::FORBIDDEN, "you have no access to this dashboard");
    app.resolver.view(&admin, parts).ok_or_else(forbidden)
}

/// Returns a refusal in the form of the answers that the request asks for.
fn refusal(parts: &Parts, status: StatusCode, text: &str) -> Response {
    match json::is_document(&parts.uri) {
        true => json::respond(Err(PageError::new(status, text))),
        false => (status, format!("{text}\n")).into_response(),
    }
}

fn set_headers(headers: &mut HeaderMap) {
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}
