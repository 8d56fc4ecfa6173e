//! Tokens of Entra ID from a credential of the application, at a server that asks for passwords and speaks
//! TLS.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::error::ErrorKind as AzureErrorKind;
use jobqueue::Storage;
use jobqueue::postgres::Options;
use jobqueue::postgres::tokio_postgres::NoTls;
use jobqueue::storage::{StoreError, StoreErrorKind};
use jobqueue_test_support::azurite::Certificate;
use jobqueue_test_support::postgres::Postgres;

use crate::{connect, connect_to, get, put, texts, with_queue, within};

/// The answer of a credential.
#[derive(Debug)]
enum Answer {
    /// A token for one connection: the next one makes it useless.
    ForOneConnection,
    /// A token that the server does not know.
    Unknown,
    Fails(AzureErrorKind),
}

/// The credential of the role `app`.
#[derive(Debug)]
struct Fake {
    answer: Answer,
    server: String,
    asked: AtomicU32,
}

impl Fake {
    fn new(server: &Server, answer: Answer) -> Arc<Self> {
        let server = server.postgres.connection_string();
        Arc::new(Self { answer, server, asked: AtomicU32::new(0) })
    }

    fn asked(&self) -> u32 {
        self.asked.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl TokenCredential for Fake {
    async fn get_token(
        &self,
        scopes: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        assert_eq!(scopes, ["https://ossrdbms-aad.database.windows.net/.default"]);
        let token = format!("secret-token-{}", self.asked.fetch_add(1, Ordering::Relaxed));
        match &self.answer {
            Answer::Unknown => {}
            Answer::Fails(kind) => {
                return Err(azure_core::Error::with_message(kind.clone(), "no identity here"));
            }
            Answer::ForOneConnection => {
                let change = format!("ALTER ROLE app PASSWORD '{token}'");
                connect_to(&self.server).await.batch_execute(&change).await.unwrap();
            }
        }
        // It ends now, so that none is kept for the next connection.
        Ok(AccessToken::new(token, SystemTime::now().into()))
    }
}

/// A server that lets the role `app` in by TLS and a password only.
struct Server {
    postgres: Postgres,
    _folder: tempfile::TempDir,
    root: String,
}

impl Server {
    async fn start() -> Self {
        let certificate = Certificate::for_names(&["localhost"]);
        let postgres = Postgres::with_tls(&certificate);
        let admin = connect(&postgres).await;
        admin.batch_execute("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app").await.unwrap();
        let file: String = admin.query_one("SHOW hba_file", &[]).await.unwrap().get(0);
        let rules = "unnest(ARRAY['hostssl all app all password', 'host all app all reject', 'host all all all trust'])";
        admin.batch_execute(&format!("COPY (SELECT {rules}) TO '{file}'")).await.unwrap();
        admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        let address = postgres.connection_string().replace("postgres@", "app@");
        within(async {
            while jobqueue::postgres::tokio_postgres::connect(&address, NoTls).await.is_ok() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("root.pem");
        std::fs::write(&path, &certificate.pem).unwrap();
        Self { postgres, root: path.display().to_string(), _folder: folder }
    }

    fn options(&self, query: &str) -> Options {
        let port = self.postgres.address().port();
        let text = format!("postgres://app:secret-of-old@localhost:{port}/postgres?{query}");
        Options::from_connection_string(&text).unwrap()
    }

    fn with_tokens(&self, answer: Answer) -> (Options, Arc<Fake>) {
        let credential = Fake::new(self, answer);
        let options = self.options(&format!("sslmode=verify-full&sslrootcert={}", self.root));
        (options.credential(Arc::clone(&credential) as _), credential)
    }
}

#[tokio::test]
async fn each_connection_has_a_token_of_its_own() {
    let server = Server::start().await;
    let (options, credential) = server.with_tokens(Answer::ForOneConnection);
    assert!(!format!("{options:?}").contains("secret"));
    // Connections that are opened at the same time would take each other's tokens.
    let options = options.max_connections(1);
    let (storage, queue) = with_queue(options.clone()).await;
    assert_eq!(credential.asked(), 2, "one for the pool, and one for the connection that listens");
    put(&storage, &queue, "first").await;
    drop(storage);

    let (storage, queue) = with_queue(options.listen(false)).await;
    let before = credential.asked();
    let admin = connect(&server.postgres).await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'";
    admin.batch_execute(end).await.unwrap();
    // The first statement may still be sent by the connection that has ended.
    let _ = storage.queues().peek(&queue, 1).await;
    assert_eq!(texts(&get(&storage, &queue, 2).await), ["first"]);
    assert_eq!(credential.asked(), before + 1);
}

#[tokio::test]
async fn token_that_is_refused_or_missing_is_explained() {
    let server = Server::start().await;
    for (answer, kind, part) in [
        (Answer::Unknown, StoreErrorKind::Unauthorized, "pgaadauth_create_principal"),
        (Answer::Fails(AzureErrorKind::Credential), StoreErrorKind::Unauthorized, "no identity here"),
        (Answer::Fails(AzureErrorKind::Io), StoreErrorKind::Unavailable, "no identity here"),
    ] {
        let (options, credential) = server.with_tokens(answer);
        let error = Storage::open(options.timeout(Duration::from_secs(20))).await.unwrap_err();
        for text in [format!("{error}"), format!("{error:?}"), format!("{error:#?}")] {
            assert!(!text.contains("secret"), "{text}");
        }
        assert!(format!("{error:?}").contains(part), "{error:?}");
        let found = StoreError::in_chain(&error).unwrap();
        assert_eq!((found.kind(), found.is_ambiguous()), (kind, false), "{error:?}");
        assert!(credential.asked() > 0);
    }
}

/// Another server that takes a token could use it.
#[tokio::test]
async fn token_goes_to_no_server_that_is_not_checked() {
    let server = Server::start().await;
    for mode in ["prefer", "disable", "require"] {
        let credential = Fake::new(&server, Answer::ForOneConnection);
        let options = server.options(&format!("sslmode={mode}"));
        let error = Storage::open(options.credential(Arc::clone(&credential) as _)).await.unwrap_err();
        let found = StoreError::in_chain(&error).unwrap();
        assert_eq!(found.kind(), StoreErrorKind::Configuration, "{mode}: {error:?}");
        assert!(found.to_string().contains("sslmode=verify-full"), "{error}");
        assert_eq!(credential.asked(), 0);
    }
    let error = Storage::connect("postgres://app@localhost/d?credential=entra").await.unwrap_err();
    assert!(format!("{error:?}").contains("sslmode=verify-full"), "{error:?}");
    let error = Storage::connect("postgres://app@localhost/d?credential=hunter2").await.unwrap_err();
    assert!(
        format!("{error:?}").contains("`credential`") && !format!("{error:?}").contains("hunter2"),
        "{error:?}"
    );
}
