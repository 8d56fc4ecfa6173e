//! Translates SQLite's errors into [`StoreError`]s. No other module does.

use std::fmt;
use std::sync::Arc;

use rusqlite::ErrorCode;

use jobqueue_storage::{StoreError, StoreErrorKind};

/// A failure that affects several operations; each of them gets a separate error made from it.
#[derive(Debug, Clone)]
pub(super) struct Cause {
    pub(super) kind: StoreErrorKind,
    detail: Arc<str>,
    pub(super) ambiguous: bool,
    source: Option<Arc<rusqlite::Error>>,
}

impl Cause {
    pub(super) fn new(kind: StoreErrorKind, detail: impl Into<Arc<str>>) -> Self {
        Self { kind, detail: detail.into(), ambiguous: false, source: None }
    }

    pub(super) fn with_source(self, error: rusqlite::Error) -> Self {
        let error = match error {
            // Its text would quote the statement, which may be a script of a hundred lines.
            rusqlite::Error::SqlInputError { error, msg, .. } => {
                rusqlite::Error::SqliteFailure(error, Some(msg))
            }
            error => error,
        };
        Self { source: Some(Arc::new(error)), ..self }
    }

    pub(super) fn ambiguous(mut self, ambiguous: bool) -> Self {
        self.ambiguous = ambiguous;
        self
    }

    pub(super) fn with_detail(mut self, detail: impl Into<Arc<str>>) -> Self {
        self.detail = detail.into();
        self
    }

    /// Returns whether SQLite, not this adapter, reported the failure.
    pub(super) fn is_of_sqlite(&self) -> bool {
        self.source.is_some()
    }

    /// Returns whether the store must stop until the file is opened again.
    pub(super) fn is_fatal(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Corrupt | StoreErrorKind::Stopped)
    }

    pub(super) fn error(&self, operation: &'static str, subject: impl fmt::Display) -> StoreError {
        let error = StoreError::new(self.kind, operation, subject)
            .with_ambiguous(self.ambiguous)
            .with_detail(&*self.detail);
        match &self.source {
            Some(source) => error.with_source(Arc::clone(source)),
            None => error,
        }
    }
}

pub(super) fn from_sql(error: rusqlite::Error) -> Cause {
    use StoreErrorKind as K;
    let extended = error.sqlite_error().map_or(0, |error| error.extended_code);
    let (kind, detail) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (K::Timeout, "another process or transaction holds the file's write lock")
        }
        Some(ErrorCode::DiskFull) => (K::Full, "nothing was written"),
        Some(ErrorCode::DatabaseCorrupt) => (K::Corrupt, "SQLite found damage in the file"),
        Some(ErrorCode::NotADatabase) => {
            (K::Corrupt, "the file is not a SQLite database, or its beginning is damaged")
        }
        Some(ErrorCode::SystemIoFailure) if extended == rusqlite::ffi::SQLITE_IOERR_SHMSIZE => {
            (K::Full, "no space for the index of the write-ahead log")
        }
        Some(ErrorCode::SystemIoFailure) => (K::Stopped, "the disk failed; check it first"),
        Some(ErrorCode::ReadOnly) if extended == rusqlite::ffi::SQLITE_READONLY_DIRECTORY => (
            K::Unauthorized,
            "no file can be created in its folder, which SQLite needs beside the database (`-wal`, `-shm`)",
        ),
        Some(ErrorCode::ReadOnly) => (K::Unauthorized, "the file cannot be written"),
        Some(ErrorCode::PermissionDenied) => (K::Unauthorized, "the file may not be accessed"),
        Some(ErrorCode::CannotOpen) if extended == rusqlite::ffi::SQLITE_CANTOPEN_SYMLINK => {
            (K::InvalidInput, "the path is a symbolic link; pass the path of the file itself")
        }
        Some(ErrorCode::CannotOpen) => (K::Unavailable, "the file cannot be opened"),
        Some(ErrorCode::TooBig) => (K::TooLarge, "SQLite holds at most 1,000,000,000 bytes in a value"),
        _ => (K::Unavailable, "SQLite failed"),
    };
    Cause::new(kind, detail).with_source(error)
}

#[derive(Debug)]
pub(super) enum Failure {
    /// The rules refuse the operation: it has written nothing, and the transaction continues.
    Refused(StoreError),
    /// SQLite failed: the transaction cannot continue.
    Sql(rusqlite::Error),
}

pub(super) type Applied<T> = Result<T, Failure>;

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_without_write_access_is_not_called_a_file() {
        let code = rusqlite::ffi::SQLITE_READONLY_DIRECTORY;
        let cause = from_sql(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None));
        assert_eq!(cause.kind, StoreErrorKind::Unauthorized);
        assert!(cause.detail.contains("folder"), "{}", cause.detail);
    }
}
