//! TLS: what each `sslmode` checks of the server.

use jobqueue::Storage;
use jobqueue::postgres::Options;
use jobqueue::storage::{StoreError, StoreErrorKind};
use jobqueue_test_support::azurite::Certificate;
use jobqueue_test_support::postgres::Postgres;

/// Connects to a host with a mode and the certificates of a file.
async fn open(
    server: &Postgres,
    host: &str,
    mode: &str,
    root: Option<&Certificate>,
) -> Result<Storage, jobqueue::Error> {
    let folder = tempfile::tempdir().unwrap();
    let mut text = format!("postgres://postgres@{host}:{}/postgres?sslmode={mode}", server.address().port());
    if let Some(root) = root {
        let path = folder.path().join("root.pem");
        std::fs::write(&path, &root.pem).unwrap();
        text.push_str(&format!("&sslrootcert={}", path.display()));
    }
    let options = Options::from_connection_string(&text).unwrap();
    Storage::open(options).await
}

fn is_refused(opened: Result<Storage, jobqueue::Error>) {
    let error = opened.unwrap_err();
    let error = StoreError::in_chain(&error).unwrap();
    assert_eq!((error.kind(), error.is_ambiguous()), (StoreErrorKind::Unavailable, false), "{error}");
    assert!(std::error::Error::source(error).is_some(), "{error}");
}

// The promises of the modes of libpq about the server.
#[tokio::test]
async fn modes_check_the_server_as_libpq_does() {
    let own = Certificate::for_names(&["localhost"]);
    let other = Certificate::for_names(&["localhost"]);
    let server = Postgres::with_tls(&own);
    let (right, wrong) = ("localhost", "127.0.0.1");
    drop(open(&server, right, "verify-full", Some(&own)).await.unwrap());
    is_refused(open(&server, wrong, "verify-full", Some(&own)).await);
    is_refused(open(&server, right, "verify-full", Some(&other)).await);
    is_refused(open(&server, right, "verify-full", None).await);
    drop(open(&server, wrong, "verify-ca", Some(&own)).await.unwrap());
    is_refused(open(&server, right, "verify-ca", Some(&other)).await);
    drop(open(&server, wrong, "require", None).await.unwrap());
    is_refused(open(&server, right, "require", Some(&other)).await);
    drop(open(&server, wrong, "prefer", None).await.unwrap());
}

/// Encryption that is required is not given up for a server that has none.
#[tokio::test]
async fn server_without_tls_is_refused_if_tls_is_required() {
    let server = Postgres::shared();
    is_refused(open(server, "127.0.0.1", "require", None).await);
    drop(open(server, "127.0.0.1", "prefer", None).await.unwrap());
}
