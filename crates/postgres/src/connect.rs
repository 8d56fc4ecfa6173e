//! Opens connections, each with a current password.

use std::future::poll_fn;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use deadpool::managed::{self, Manager, Metrics, RecycleError, RecycleResult};
use scopeguard::guard;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, timeout};
use tokio_postgres::{Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::servers::{CONNECT_TIMEOUT, of_each_server};
use crate::settings::{Passwords, Settings};
use crate::tls::Stream;
use jobqueue_storage::StoreError;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::sync::lock;

/// The factor between the time limits of a server and of a connection to an address: a name may have several
/// addresses, and the login takes time.
const LOGIN_FACTOR: u32 = 3;
/// The time after which a caller starts another opening although earlier openings are still in progress. A
/// slow server is not asked more often, and an opening that hangs does not hold up all callers.
const SECOND_OPENING_DELAY: Duration = Duration::from_secs(5);
/// The maximum number of openings that continue without a caller.
const MAX_ABANDONED_OPENINGS: usize = 4;

pub(crate) type Pool = managed::Pool<Connector>;
pub(crate) type Object = managed::Object<Connector>;

/// Opens connections, for the pool and outside of it.
#[derive(Clone)]
pub(crate) struct Connector {
    /// A configuration for each server that the connection string names.
    servers: Arc<[Config]>,
    /// The server that answered last. It is asked first, so that a server that is gone delays only a single
    /// connection.
    last: Arc<AtomicUsize>,
    passwords: Option<Passwords>,
    /// The time limit of the source of passwords.
    timeout: Duration,
    pub(crate) tls: MakeRustlsConnect,
    runtime: Runtime,
    /// Openings whose callers gave up. The renewal of a lease has less time than an opening takes if a server
    /// is gone, so the opening continues, and the next caller takes it over. These connections do not count
    /// as connections of the pool.
    abandoned: Arc<Mutex<Vec<Opening>>>,
}

/// A connection that is being opened.
struct Opening {
    began: Instant,
    task: JoinHandle<Opened>,
}

type Opened = Result<Session, ConnectError>;

/// The reason why there is no connection.
pub(crate) enum ConnectError {
    Password(StoreError),
    Server(tokio_postgres::Error),
    /// There was no answer in time.
    Silent,
}

impl ConnectError {
    /// Returns whether a server gave a reason. A server that is gone gives none. The refusal of a standby has
    /// no code, and does not count as a reason.
    fn is_answer(&self) -> bool {
        matches!(self, Self::Server(failure) if failure.as_db_error().is_some())
    }
}

impl From<tokio_postgres::Error> for ConnectError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Server(error)
    }
}

/// A connection of the pool. Dropping it closes it at once, even if a statement has no answer.
pub(crate) struct Session {
    client: Client,
    task: JoinHandle<Result<(), tokio_postgres::Error>>,
}

impl Connector {
    pub(crate) fn new(settings: &Settings, tls: MakeRustlsConnect, runtime: Runtime) -> Self {
        Self {
            servers: of_each_server(&settings.config).into(),
            last: Arc::default(),
            passwords: settings.passwords.clone(),
            timeout: settings.timeout,
            tls,
            runtime,
            abandoned: Arc::default(),
        }
    }

    /// Returns a connector for another pool. It prefers the same server.
    pub(crate) fn for_another_pool(&self) -> Self {
        Self { abandoned: Arc::default(), ..self.clone() }
    }

    /// Opens a connection to the first server that accepts it, beginning with the server that answered last.
    pub(crate) async fn connect(&self) -> Result<(Client, Connection<Socket, Stream>), ConnectError> {
        let password = match &self.passwords {
            Some(passwords) => {
                let password = timeout(self.timeout, passwords()).await.map_err(|_| ConnectError::Silent)?;
                Some(password.map_err(ConnectError::Password)?)
            }
            None => None,
        };
        let (last, mut failure) = (self.last.load(Ordering::Relaxed), None);
        for number in (last..self.servers.len()).chain(0..last) {
            let mut config = self.servers[number].clone();
            if let Some(password) = &password {
                config.password(password);
            }
            // All servers share `timeout`, which is the limit for opening a storage.
            let share = self.timeout / u32::try_from(self.servers.len()).unwrap_or(u32::MAX);
            let limit = config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT);
            let limit = limit.saturating_mul(LOGIN_FACTOR).min(share);
            match timeout(limit, config.connect(self.tls.clone())).await {
                Ok(Ok(connected)) => {
                    self.last.store(number, Ordering::Relaxed);
                    return Ok(connected);
                }
                Ok(Err(error)) => failure = failure.filter(ConnectError::is_answer).or(Some(error.into())),
                Err(_) => failure = failure.or(Some(ConnectError::Silent)),
            }
        }
        Err(failure.unwrap_or(ConnectError::Silent))
    }

    /// Starts to open a connection of the pool.
    fn open(&self) -> Opening {
        let connector = self.clone();
        let task = self.runtime.spawn(async move {
            let (client, connection) = connector.connect().await?;
            Ok(Session { client, task: connector.runtime.spawn(connection) })
        });
        Opening { began: Instant::now(), task }
    }

    /// Leaves openings to the next caller. If there are too many, it keeps the oldest, which reaches the next
    /// server first, and the youngest ones.
    fn hand_over(&self, openings: Vec<Opening>) {
        let mut abandoned = lock(&self.abandoned);
        abandoned.extend(openings);
        abandoned.sort_by_key(|opening| opening.began);
        let excess = abandoned.len().saturating_sub(MAX_ABANDONED_OPENINGS);
        let second = abandoned.len().min(1);
        abandoned.drain(second..second + excess).for_each(|opening| opening.task.abort());
    }
}

impl Manager for Connector {
    type Type = Session;
    type Error = ConnectError;

    /// Returns the first connection that is open. It waits for the openings that other callers abandoned, and
    /// also starts a new one if none of them is recent.
    async fn create(&self) -> Result<Session, ConnectError> {
        let abandoned = mem::take(&mut *lock(&self.abandoned));
        // An old failure says nothing about now, so only the failure of the new opening is returned.
        let mut openings = guard(abandoned, |openings| self.hand_over(openings));
        let mut is_new = false;
        loop {
            if !is_new && openings.iter().all(|opening| opening.began.elapsed() >= SECOND_OPENING_DELAY) {
                openings.push(self.open());
                is_new = true;
            }
            let wait = if is_new { Duration::MAX } else { SECOND_OPENING_DELAY };
            let first = timeout(wait, poll_fn(|task| first_of(&mut openings, task))).await;
            let Ok((number, opened)) = first else { continue };
            let was_new = is_new && number + 1 == openings.len();
            drop(openings.remove(number));
            match opened.map_err(JoinError::try_into_panic) {
                Ok(Ok(session)) if !session.is_closed() => return Ok(session),
                Ok(Err(failure)) if was_new => return Err(failure),
                // The application's source of passwords panicked.
                Err(Ok(panic)) if was_new => std::panic::resume_unwind(panic),
                Err(Err(_)) if was_new => return Err(ConnectError::Silent),
                _ => {}
            }
        }
    }

    async fn recycle(&self, session: &mut Session, _: &Metrics) -> RecycleResult<ConnectError> {
        if session.is_closed() {
            return Err(RecycleError::message("the connection is closed"));
        }
        Ok(())
    }
}

/// Returns the index and the result of the first opening that has ended.
fn first_of(openings: &mut [Opening], task: &mut Context<'_>) -> Poll<(usize, Result<Opened, JoinError>)> {
    for (number, opening) in openings.iter_mut().enumerate() {
        if let Poll::Ready(opened) = Pin::new(&mut opening.task).poll(task) {
            return Poll::Ready((number, opened));
        }
    }
    Poll::Pending
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_server::FakeServer;
    use crate::tls;
    use tokio::net::TcpListener;
    use tokio::sync::Semaphore;

    fn connector(settings: &Settings) -> Connector {
        Connector::new(settings, tls::connector(settings).unwrap(), Runtime::new())
    }

    /// A renewal has three seconds, and a server that is gone delays each connection by ten.
    #[tokio::test]
    async fn connection_is_opened_also_if_its_caller_gives_up() {
        let server = FakeServer::start(|_| Vec::new()).await;
        let (asked, given) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let counters = (Arc::clone(&asked), Arc::clone(&given));
        let passwords: Passwords = Arc::new(move || {
            let (asked, given) = counters.clone();
            Box::pin(async move {
                asked.fetch_add(1, Ordering::SeqCst);
                given.acquire().await.unwrap().forget();
                Ok("a password".to_owned())
            })
        });
        let connector = connector(&Settings { passwords: Some(passwords), ..server.settings() });
        // Three callers wait for the same opening, and give up one after the other.
        for _ in 0..3 {
            let mut opening = Box::pin(connector.create());
            assert!(now(&mut opening).await.is_none());
        }
        given.add_permits(1);
        assert!(connector.create().await.is_ok());
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        assert!(lock(&connector.abandoned).is_empty());
    }

    /// Polls a future once, lets its tasks run, and returns its output if it is ready.
    async fn now<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = tokio::task::yield_now() => None,
        }
    }

    /// This happens behind a proxy whose server has moved.
    #[tokio::test(start_paused = true)]
    async fn opening_that_hangs_holds_up_no_caller_for_long() {
        let server = FakeServer::start(|_| Vec::new()).await;
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        // The first caller's password never comes.
        let passwords: Passwords = Arc::new(move || {
            let is_first = counter.fetch_add(1, Ordering::SeqCst) == 0;
            Box::pin(async move {
                if is_first {
                    std::future::pending::<()>().await;
                }
                Ok("a password".to_owned())
            })
        });
        let settings =
            Settings { passwords: Some(passwords), timeout: SECOND_OPENING_DELAY * 100, ..server.settings() };
        let connector = connector(&settings);
        assert!(now(&mut Box::pin(connector.create())).await.is_none());
        assert!(connector.create().await.is_ok());
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        assert_eq!(lock(&connector.abandoned).len(), 1);
    }

    /// The machine still accepts connections, but the server does not answer.
    #[tokio::test]
    async fn silent_server_is_passed_over_and_asked_last_from_then_on() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = FakeServer::start(|_| Vec::new()).await;
        let share = Duration::from_millis(500);
        let mut connector = connector(&Settings { timeout: share * 2, ..server.settings() });
        let mut gone = Config::new();
        let port = silent.local_addr().unwrap().port();
        gone.host("127.0.0.1").port(port).user("u");
        connector.servers = [gone, connector.servers[0].clone()].into();
        for _ in 0..2 {
            // Without its share of the time the silent server would have half a minute.
            let connected = timeout(Duration::from_secs(10), connector.connect()).await;
            assert!(connected.is_ok_and(|connected| connected.is_ok()));
        }
        assert_eq!(connector.for_another_pool().last.load(Ordering::Relaxed), 1);
        assert!(silent.accept().await.is_ok());
        // The silent server was asked only once.
        assert!(now(&mut Box::pin(silent.accept())).await.is_none());
    }
}
