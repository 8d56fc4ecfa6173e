//! Log lines that clients cause, each limited in its rate.

use std::net::SocketAddr;

use axum::extract::ConnectInfo;
use axum::http::request::Parts;
use jobqueue_admin::JobReference;

use crate::browser::app::{App, AuthorizedRequest};
use crate::browser::text::line;

/// Logs a request with a wrong name, password or token.
pub(crate) fn refused_login(app: &App, parts: &Parts) {
    // The name of a user, but no other text in its place: it may be a password.
    let user = app.logins.named(&parts.headers).unwrap_or("unknown");
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip());
    if let Some(times) = app.refused_logins.count((user, peer)) {
        let path = parts.uri.path().escape_debug();
        let peer = peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
        tracing::warn!(user, %peer, %path, times, "refused a wrong name, password or token");
    }
}

/// Logs that an operator reads the payload of a job.
pub(crate) fn payload_read(request: &AuthorizedRequest, job: &JobReference) {
    let operator = request.admin.operator();
    if let Some(times) = request.app.payload_reads.count((operator, &job.queue, &job.source, &job.id)) {
        let (operator, queue, id) = (line(operator), line(&job.queue), line(&job.id));
        let source = job.source.as_deref().map(line).unwrap_or_default();
        tracing::info!(%operator, %queue, job = %id, %source, times, "an operator reads the payload of a job");
    }
}

/// Logs that an operator reads a document with jobs of a queue and their payloads.
pub(crate) fn payloads_read(request: &AuthorizedRequest, document: &str, queue: &str) {
    let operator = request.admin.operator();
    if let Some(times) = request.app.payload_reads.count((operator, document, queue)) {
        let (operator, queue) = (line(operator), line(queue));
        tracing::info!(%operator, %queue, document, times, "an operator reads jobs with their payloads");
    }
}
