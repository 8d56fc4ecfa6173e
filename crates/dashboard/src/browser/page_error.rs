//! The error of a request, with its status.

use axum::http::StatusCode;
use jobqueue::{Error, ErrorKind};

use crate::browser::looks::Unread;

/// The answer to a request that failed.
#[derive(Debug)]
pub(crate) struct PageError {
    status: StatusCode,
    text: String,
}

impl PageError {
    pub(crate) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    pub(crate) fn forbidden(text: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, text)
    }

    pub(crate) fn missing(text: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, text)
    }

    /// Turns 502 into 503 for a page, which can be loaded again, unlike a change.
    pub(crate) fn of_page(self) -> Self {
        match self.status {
            StatusCode::BAD_GATEWAY => Self::new(StatusCode::SERVICE_UNAVAILABLE, self.text),
            _ => self,
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn into_parts(self) -> (StatusCode, String) {
        (self.status, self.text)
    }

    pub(crate) fn busy(text: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, text)
    }
}

impl From<Error> for PageError {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::Forbidden => StatusCode::FORBIDDEN,
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Invalid | ErrorKind::Configuration => StatusCode::BAD_REQUEST,
            ErrorKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ErrorKind::Conflict => StatusCode::CONFLICT,
            _ => StatusCode::BAD_GATEWAY,
        };
        // `Debug` of an error has all causes in one line.
        Self::new(status, format!("{error:?}"))
    }
}

impl From<Unread> for PageError {
    fn from(Unread(reason): Unread) -> Self {
        let text = format!("the storage has not answered since this dashboard started: {reason}");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, text)
    }
}

impl From<askama::Error> for PageError {
    fn from(error: askama::Error) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the page cannot be written: {error}"))
    }
}
