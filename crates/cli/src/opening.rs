//! The storages of a long-running command. A storage that is unavailable when the command starts is opened
//! later.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::future::{BoxFuture, join_all};
use jobqueue::__internals::connect_existing;
use jobqueue::Storage;
use jobqueue::storage::{Call, Intercepted, Interceptor, StoreError, StoreErrorKind};

use crate::args::Global;
use crate::exit::Failure;
use crate::output::say;
use crate::session::{Choice, Need, Session, choose_all};
use crate::text::time;

/// The time that an attempt to open a storage may take before the storage counts as unavailable.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two attempts to open a storage.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// A storage of a long-running command.
pub(crate) struct LongLivedStorage {
    /// The name of its context, if there are several.
    pub(crate) context: Option<String>,
    /// The session. While the storage is unavailable, each request fails with the reason.
    pub(crate) session: Session,
    /// Resolves to the session that replaces this one, once the storage is open; `None` if it already is.
    pub(crate) later: Option<BoxFuture<'static, Session>>,
}

/// Opens the storages that the arguments name, concurrently. Fails if the configuration is wrong, or if a
/// storage cannot be opened and the error is not retryable.
pub(crate) async fn open(global: &Global, need: Need) -> Result<Vec<LongLivedStorage>, Failure> {
    let choices = choose_all(global)?;
    let is_one = choices.len() == 1;
    let opened = choices.into_iter().map(async |choice| {
        choice.check(need)?;
        let context = choice.context.clone().filter(|_| !is_one);
        match (open_one(global, choice, need).await, context) {
            (Ok((session, later)), context) => Ok(LongLivedStorage { context, session, later }),
            (Err(failure), None) => Err(failure),
            (Err(failure), Some(name)) => Err(Failure::Failed(format!(
                "the storage of the context `{name}` cannot be opened; leave it out to see the others: {}",
                failure.into_text()
            ))),
        }
    });
    join_all(opened).await.into_iter().collect()
}

async fn open_one(
    global: &Global,
    choice: Choice,
    need: Need,
) -> Result<(Session, Option<BoxFuture<'static, Session>>), Failure> {
    let reason = match tokio::time::timeout(OPEN_TIMEOUT, connect_existing(&choice.storage)).await {
        Ok(Ok(storage)) => return Ok((Session::new(global, &choice, need, storage)?, None)),
        Ok(Err(error)) if !error.is_retryable() => return Err(error.into()),
        Ok(Err(error)) => Failure::from(error).into_text(),
        Err(_) => format!("no answer within {OPEN_TIMEOUT:?}"),
    };
    let unavailable = Arc::new(UnavailableStorage::new(&choice, reason));
    say(&format!("{}; trying again until it is open", unavailable.text()));
    let session = Session::new(global, &choice, need, unavailable.storage())?;
    Ok((session, Some(Box::pin(open_later(global.clone(), choice, need, unavailable)))))
}

/// Tries to open a storage until it succeeds.
async fn open_later(
    global: Global,
    choice: Choice,
    need: Need,
    unavailable: Arc<UnavailableStorage>,
) -> Session {
    loop {
        tokio::time::sleep(RETRY_INTERVAL).await;
        let opened = connect_existing(&choice.storage).await.map_err(Failure::from);
        match opened.and_then(|storage| Session::new(&global, &choice, need, storage)) {
            Ok(session) => {
                say(&format!("{} is open", unavailable.name));
                return session;
            }
            Err(failure) => unavailable.set(failure.into_text()),
        }
    }
}

/// Fails each request to a storage that is not open, with the reason.
#[derive(Debug)]
struct UnavailableStorage {
    name: String,
    since: SystemTime,
    reason: Mutex<String>,
}

impl UnavailableStorage {
    fn new(choice: &Choice, reason: String) -> Self {
        let name = match (&choice.context, choice.file()) {
            (Some(context), _) => format!("the storage of `{context}`"),
            (None, Some(file)) => format!("sqlite:{file}"),
            // The storage string may contain a password.
            (None, None) => "the storage".to_owned(),
        };
        Self { name, since: SystemTime::now(), reason: Mutex::new(reason) }
    }

    fn set(&self, reason: String) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    fn text(&self) -> String {
        let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        format!("{} has been unavailable since {}: {reason}", self.name, time(self.since))
    }

    fn error(&self) -> StoreError {
        StoreError::new(StoreErrorKind::Unavailable, "open storage", "").with_detail(self.text())
    }

    fn storage(self: &Arc<Self>) -> Storage {
        let empty = Storage::memory();
        let queues = Intercepted::queues(Arc::clone(empty.queues().store()), self);
        let blobs = Intercepted::blobs(Arc::clone(empty.blobs()), self);
        Storage::new(queues, blobs, format!("{}, not open yet", self.name))
    }
}

impl Interceptor for UnavailableStorage {
    async fn call<T: Send>(
        &self,
        _: Call<'_>,
        _: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        Err(self.error())
    }

    async fn call_all<T: Send>(
        &self,
        _: Call<'_>,
        count: usize,
        _: impl Future<Output = Vec<Result<T, StoreError>>> + Send,
    ) -> Vec<Result<T, StoreError>> {
        self.error().for_each(count).map(Err).collect()
    }
}
