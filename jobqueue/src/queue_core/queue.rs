//! One queue of a storage without its message type: the part that `Queue<M>` and the worker share.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::backlog::wait_until_below;
use super::receive::Idle;
use super::settings::{REFRESH, SettingsCache};
use crate::claim_check::{ClaimChecks, DEFAULT_MAX_PAYLOAD_BYTES};
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, ErrorKind};
use crate::event::{Event, Observers};
use crate::fifo::GroupLogs;
use crate::lease::{LeaseRenewer, LeaseTerms};
use crate::message::MessageDefaults;
use crate::name::QueueName;
use crate::settings::metadata::Metadata;
use crate::settings::{QueueSettings, SettingOverrides};
use crate::storage::{
    ExpiredReceipt, GetMessages, MAX_MESSAGES, QueueStore, Received, Storage, StoreError, StoreErrorKind,
};
use crate::trace::Step;

/// The maximum time to wait until a queue that is being deleted can be created again.
const WAIT_FOR_DELETION: Duration = Duration::from_secs(90);

/// The options of a queue core.
#[derive(Debug, Clone)]
pub(crate) struct QueueCoreOptions {
    pub(crate) defaults: MessageDefaults,
    pub(crate) overrides: SettingOverrides,
    pub(crate) settings_refresh: Duration,
    pub(crate) max_payload_bytes: u64,
    pub(crate) max_run_time: Duration,
    pub(crate) expired: ExpiredReceipt,
    pub(crate) clock: Arc<dyn Clock>,
    /// The lease renewer; `None` for that of the process.
    pub(crate) renewer: Option<LeaseRenewer>,
    /// The `source` of sent events.
    pub(crate) source: Arc<str>,
    /// The name of the worker in dead letters.
    pub(crate) worker: Arc<str>,
}

/// The default maximum run time of a job: 12 hours.
pub(crate) const DEFAULT_MAX_RUN_TIME: Duration = Duration::from_secs(12 * 3600);

impl Default for QueueCoreOptions {
    fn default() -> Self {
        Self {
            defaults: MessageDefaults::new(),
            overrides: SettingOverrides::default(),
            settings_refresh: REFRESH,
            max_payload_bytes: DEFAULT_MAX_PAYLOAD_BYTES,
            max_run_time: DEFAULT_MAX_RUN_TIME,
            expired: ExpiredReceipt::Refuse,
            clock: Arc::new(SystemClock),
            renewer: None,
            source: default_source(),
            worker: default_source(),
        }
    }
}

/// The beginning of the sources that the framework gives.
pub(super) const OWN_SOURCES: &str = "/jobqueue/";

/// Returns `/jobqueue/<program>`: a URI reference, as CloudEvents requires.
fn default_source() -> Arc<str> {
    static SOURCE: OnceLock<Arc<str>> = OnceLock::new();
    let source = SOURCE.get_or_init(|| {
        let program = std::env::current_exe().ok();
        let stem = program.as_deref().and_then(|path| path.file_stem()).map(|stem| stem.to_string_lossy());
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
        let name: String = stem.as_deref().unwrap_or("program").chars().take(80).map(plain).collect();
        format!("{OWN_SOURCES}{name}").into()
    });
    Arc::clone(source)
}

/// One queue of a storage.
#[derive(Debug)]
pub(crate) struct QueueCore {
    pub(crate) storage: Storage,
    pub(crate) name: QueueName,
    pub(crate) claim_checks: ClaimChecks,
    pub(crate) options: QueueCoreOptions,
    /// The logs of the FIFO groups.
    pub(crate) fifo: GroupLogs,
    /// True if the storage keeps the order of the FIFO groups itself: they have no logs then.
    pub(crate) orders_groups: bool,
    settings: SettingsCache,
    renewer: LeaseRenewer,
    renewer_store: Arc<dyn QueueStore>,
}

impl QueueCore {
    /// Opens a queue, and creates it if it does not exist.
    pub(crate) async fn open(
        storage: &Storage,
        name: QueueName,
        options: QueueCoreOptions,
    ) -> Result<Arc<Self>, Error> {
        let metadata = QueueSettings::initial_metadata(&options.defaults);
        let fifo = GroupLogs::new(Arc::clone(storage.blobs()), name.clone());
        let metadata = ensure(&**storage.queues(), &name, &metadata, Some(&fifo)).await?;
        Self::with_metadata(storage, name, options, (metadata, fifo)).await
    }

    /// Opens a queue that exists, and creates none.
    pub(crate) async fn open_existing(
        storage: &Storage,
        name: QueueName,
        options: QueueCoreOptions,
    ) -> Result<Arc<Self>, Error> {
        let metadata = match storage.queues().queue_metadata(&name).await {
            Err(e) if e.kind() == StoreErrorKind::QueueNotFound => {
                let text = format!("there is no queue `{name}`");
                return Err(Error::new(ErrorKind::NotFound, text).with_source(e));
            }
            metadata => metadata?,
        };
        let fifo = GroupLogs::new(Arc::clone(storage.blobs()), name.clone());
        Self::with_metadata(storage, name, options, (metadata, fifo)).await
    }

    async fn with_metadata(
        storage: &Storage,
        name: QueueName,
        options: QueueCoreOptions,
        (metadata, fifo): (Metadata, GroupLogs),
    ) -> Result<Arc<Self>, Error> {
        let settings = SettingsCache::new(
            &name,
            &metadata,
            options.defaults,
            options.overrides,
            options.settings_refresh,
        );
        let renewer = match &options.renewer {
            Some(renewer) => renewer.clone(),
            None => LeaseRenewer::process().map_err(|e| {
                Error::new(ErrorKind::Configuration, "the thread that renews leases could not be started")
                    .with_source(e)
            })?,
        };
        let claim_checks = ClaimChecks::new(
            Arc::clone(storage.blobs()),
            Arc::clone(&options.clock),
            options.max_payload_bytes,
        )?;
        let renewer_store = storage.queues_apart();
        let orders_groups = storage.queues().orders_groups(&name).await?;
        Ok(Arc::new(Self {
            storage: storage.clone(),
            name,
            claim_checks,
            options,
            fifo,
            orders_groups,
            settings,
            renewer,
            renewer_store,
        }))
    }

    pub(crate) fn store(&self) -> &dyn QueueStore {
        &**self.storage.queues()
    }

    pub(crate) fn store_handle(&self) -> Arc<dyn QueueStore> {
        Arc::clone(self.storage.queues())
    }

    /// Returns those who observe the queue.
    pub(crate) fn observers(&self) -> &Arc<Observers> {
        self.storage.observers()
    }

    pub(crate) fn renewer(&self) -> &LeaseRenewer {
        &self.renewer
    }

    pub(crate) fn renewer_store(&self) -> Arc<dyn QueueStore> {
        Arc::clone(&self.renewer_store)
    }

    /// Returns the settings as they were last read.
    pub(crate) fn settings(&self) -> Arc<QueueSettings> {
        self.settings.present()
    }

    /// Returns the settings; reads them again if they are older than the refresh interval.
    pub(crate) async fn fresh_settings(&self) -> Arc<QueueSettings> {
        self.settings.fresh(self.store(), &self.name).await
    }

    pub(crate) fn terms(&self, settings: &QueueSettings) -> LeaseTerms {
        LeaseTerms {
            visibility: settings.timeout,
            max_run_time: self.options.max_run_time,
            expired: self.options.expired,
        }
    }

    /// Waits until the queue has room, if requested, and reads the current settings.
    pub(crate) async fn ready_to_send(&self, below: Option<u64>) -> Result<(), Error> {
        if let Some(mark) = below {
            // Boxed, because few sends need it.
            Box::pin(wait_until_below(self, mark)).await?;
        }
        self.fresh_settings().await;
        Ok(())
    }

    /// Leases up to `count` messages. Also returns the time before the request, from which deadlines are counted.
    pub(crate) async fn get(
        &self,
        count: u32,
        settings: &QueueSettings,
    ) -> Result<(Received, Instant), StoreError> {
        let options = GetMessages { count: count.clamp(1, MAX_MESSAGES), visibility: settings.timeout };
        let requested = Instant::now();
        let since = self.observers().trace().then(SystemTime::now);
        let received = self.store().get(&self.name, options).await;
        self.tell_received(requested, since, received.as_ref());
        Ok((received?, requested))
    }

    /// Tells the observers of the answer to a request for messages.
    fn tell_received(
        &self,
        requested: Instant,
        since: Option<SystemTime>,
        received: Result<&Received, &StoreError>,
    ) {
        let (queue, observers) = (&self.name, self.observers());
        let messages = received.map_or(0, |received| received.messages.len());
        if let Some(since) = since {
            let error = received.err().map(|error| error.kind().as_str());
            observers.span(|| Step::Receive { queue, since, messages }).end(None, error);
        }
        if received.is_ok() {
            observers.tell(|| Event::Received { queue: queue.clone(), messages, took: requested.elapsed() });
        }
    }

    /// Returns a pause between requests to an empty queue, of at most `max` each.
    pub(crate) fn idle(&self, max: Duration) -> Idle {
        Idle::new(self.store().subscribe(&self.name), max)
    }
}

/// Makes sure that a queue exists, and returns its metadata. Creates it with empty `logs` if it is missing; waits
/// while a deleted queue of this name is being removed.
pub(super) async fn ensure(
    store: &dyn QueueStore,
    name: &QueueName,
    metadata: &Metadata,
    logs: Option<&GroupLogs>,
) -> Result<Metadata, Error> {
    let mut wait = Duration::from_millis(500);
    let give_up = tokio::time::Instant::now() + WAIT_FOR_DELETION;
    loop {
        let found = match store.queue_metadata(name).await {
            Err(e) if e.kind() == StoreErrorKind::QueueNotFound => create(store, name, metadata, logs).await,
            found => found,
        };
        match found {
            Ok(metadata) => return Ok(metadata),
            Err(e)
                if e.kind() == StoreErrorKind::QueueBeingDeleted && tokio::time::Instant::now() < give_up =>
            {
                tracing::info!(queue = %name, "the queue is being deleted; waiting to create it again");
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(Duration::from_secs(10));
            }
            Err(e) => {
                let retryable = e.is_retryable();
                let text = format!("opening the queue `{name}` failed");
                return Err(Error::new(ErrorKind::Storage, text).with_retryable(retryable).with_source(e));
            }
        }
    }
}

async fn create(
    store: &dyn QueueStore,
    name: &QueueName,
    metadata: &Metadata,
    logs: Option<&GroupLogs>,
) -> Result<Metadata, StoreError> {
    if let Some(logs) = logs {
        let is_missing = || async {
            match store.queue_metadata(name).await {
                Err(e) if e.kind() == StoreErrorKind::QueueNotFound => Ok(true),
                found => found.map(|_| false),
            }
        };
        // The logs of a deleted queue of this name. Deliveries skip entries that cannot be removed.
        if let Err(error) = logs.clear_stale(is_missing).await {
            tracing::debug!(queue = %name, %error, "emptying the group logs of a deleted queue failed");
        }
    }
    match store.create_queue(name, metadata).await {
        Ok(_) => Ok(metadata.clone()),
        // Another process was faster, or an operator has created it with other settings: those hold.
        Err(e) if e.kind() == StoreErrorKind::QueueAlreadyExists => store.queue_metadata(name).await,
        Err(e) => Err(e),
    }
}
