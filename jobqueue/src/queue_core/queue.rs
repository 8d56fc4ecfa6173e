//! One queue of a storage without its message type: the part that `Queue<M>` and the worker share.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::errors::no_renewer;
use super::idle::Idle;
use super::open::{create_transaction_containers, ensure};
use super::settings_cache::{DEFAULT_REFRESH, SettingsCache};
use crate::claim_check::{ClaimChecks, DEFAULT_MAX_PAYLOAD_BYTES};
use crate::clock::WITHOUT_END;
use crate::error::{Error, ErrorKind};
use crate::event::{Event, Observers};
use crate::group_log::GroupLogs;
use crate::lease::{LeaseRenewer, LeaseTerms, LeasedQueue};
use crate::message::MessageDefaults;
use crate::process::{host, program};
use crate::runtime::Runtime;
use crate::settings::{Metadata, QueueSettings, SettingOverrides};
use crate::storage::{
    BlobStore, GetMessages, MAX_MESSAGES, QueueName, Queues, Received, Storage, StoreError, StoreErrorKind,
};
use crate::trace::Step;

#[derive(Debug, Clone)]
pub(crate) struct QueueCoreOptions {
    pub(crate) defaults: MessageDefaults,
    pub(crate) overrides: SettingOverrides,
    pub(crate) settings_refresh: Duration,
    pub(crate) max_payload_bytes: u64,
    pub(crate) max_run_time: Duration,
    /// The lease renewer that several queues share; `None` for the renewer of the storage's runtime.
    pub(crate) renewer: Option<LeaseRenewer>,
    /// The `source` of sent events.
    pub(crate) source: Arc<str>,
    /// The name of the worker in dead letters.
    pub(crate) worker: Arc<str>,
    /// Fires one second before a shutdown drops the remaining deliveries. A delivery that waits for a hook, a
    /// group log or the record of an effect then stops waiting and puts its message back.
    pub(crate) settle_now: CancellationToken,
}

/// The default maximum run time of a job: 12 hours.
pub(crate) const DEFAULT_MAX_RUN_TIME: Duration = Duration::from_secs(12 * 3600);

impl Default for QueueCoreOptions {
    fn default() -> Self {
        Self {
            defaults: MessageDefaults::new(),
            overrides: SettingOverrides::default(),
            settings_refresh: DEFAULT_REFRESH,
            max_payload_bytes: DEFAULT_MAX_PAYLOAD_BYTES,
            max_run_time: DEFAULT_MAX_RUN_TIME,
            renewer: None,
            source: default_source(),
            worker: default_worker(),
            settle_now: CancellationToken::new(),
        }
    }
}

/// The maximum time that a caller waits for a refresh of its queue's settings.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(2);

/// The time that a call may still take after [`settle_now`](QueueCoreOptions::settle_now) has fired: two such
/// calls leave half of the second for the put-back.
const LAST_CALL_GRACE: Duration = Duration::from_millis(250);

impl QueueCoreOptions {
    /// Awaits a call without whose result a delivery can end. Returns `None` if the call has no result
    /// shortly after [`settle_now`](Self::settle_now) has fired.
    pub(crate) async fn call_before_end<F: Future>(&self, call: F) -> Option<F::Output> {
        let over = async {
            self.settle_now.cancelled().await;
            tokio::time::sleep(LAST_CALL_GRACE).await;
        };
        tokio::select! {
            biased;
            answer = call => Some(answer),
            () = over => None,
        }
    }
}

/// The maximum delay of a job: the time from its send until it may run.
pub(crate) const MAX_DELAY: Duration = Duration::from_secs(10 * 366 * 86_400);

/// Returns `/jobqueue/<program>`: a URI reference, as CloudEvents requires.
fn default_source() -> Arc<str> {
    static SOURCE: OnceLock<Arc<str>> = OnceLock::new();
    Arc::clone(SOURCE.get_or_init(|| format!("/jobqueue/{}", program()).into()))
}

/// Returns `<program>@<host>:<process id>`.
fn default_worker() -> Arc<str> {
    static WORKER: OnceLock<Arc<str>> = OnceLock::new();
    let name = || format!("{}@{}:{}", program(), host(), std::process::id()).into();
    Arc::clone(WORKER.get_or_init(name))
}

#[derive(Debug)]
pub(crate) struct QueueCore {
    pub(crate) storage: Storage,
    pub(crate) name: QueueName,
    pub(crate) claim_checks: ClaimChecks,
    pub(crate) options: QueueCoreOptions,
    pub(crate) groups: GroupLogs,
    /// The group logs over the connections of the lease renewer's runtime.
    pub(crate) detached_groups: GroupLogs,
    /// True if the storage itself keeps the order of FIFO groups; the groups then have no logs.
    pub(crate) orders_groups: bool,
    /// The handles for changing leased messages.
    pub(crate) leased_queue: Arc<LeasedQueue>,
    settings: Arc<SettingsCache>,
}

impl QueueCore {
    /// Opens a queue. Creates it if it does not exist.
    pub(crate) fn open(
        storage: &Storage,
        name: QueueName,
        options: QueueCoreOptions,
    ) -> BoxFuture<'_, Result<Arc<Self>, Error>> {
        Box::pin(async move {
            // Fails for a name that leaves no room for the name of the dead-letter queue.
            name.dead_letter()?;
            let groups = GroupLogs::new(storage, name.clone());
            let metadata = ensure(storage.queues(), &name, Some(&groups)).await?;
            create_transaction_containers(storage).await;
            Self::with_metadata(storage, name, options, metadata, groups).await
        })
    }

    pub(crate) async fn open_existing(
        storage: &Storage,
        name: QueueName,
        options: QueueCoreOptions,
    ) -> Result<Arc<Self>, Error> {
        let metadata = match storage.queues().queue_metadata(&name).await {
            Err(e) if e.kind() == StoreErrorKind::QueueNotFound => {
                let text = format!("there is no queue `{name}`; check its name, or create it first");
                return Err(Error::new(ErrorKind::NotFound, text));
            }
            metadata => metadata?,
        };
        let groups = GroupLogs::new(storage, name.clone());
        Self::with_metadata(storage, name, options, metadata, groups).await
    }

    async fn with_metadata(
        storage: &Storage,
        name: QueueName,
        options: QueueCoreOptions,
        metadata: Metadata,
        groups: GroupLogs,
    ) -> Result<Arc<Self>, Error> {
        let settings = Arc::new(SettingsCache::new(
            &name,
            &metadata,
            options.defaults,
            options.overrides,
            options.settings_refresh,
        ));
        let renewer = match &options.renewer {
            Some(renewer) => renewer.clone(),
            None => LeaseRenewer::of(storage.runtime()).map_err(no_renewer)?,
        };
        let claim_checks = ClaimChecks::new(storage, options.max_payload_bytes)?;
        let leased_queue = Arc::new(LeasedQueue {
            name: name.clone(),
            store: Arc::clone(storage.queues()),
            renewer_store: storage.detached_queues(),
            renewer,
            observers: Arc::clone(storage.observers()),
        });
        let orders_groups = storage.queues().orders_groups(&name).await?;
        Ok(Arc::new(Self {
            storage: storage.clone(),
            name,
            claim_checks,
            options,
            detached_groups: groups.detached(storage),
            groups,
            orders_groups,
            leased_queue,
            settings,
        }))
    }

    pub(crate) fn store(&self) -> &Queues {
        self.storage.queues()
    }

    pub(crate) fn blobs(&self) -> &Arc<dyn BlobStore> {
        self.storage.blobs()
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        self.storage.runtime()
    }

    pub(crate) fn now(&self) -> SystemTime {
        self.runtime().now()
    }

    pub(crate) fn observers(&self) -> &Arc<Observers> {
        self.storage.observers()
    }

    pub(crate) fn settings(&self) -> Arc<QueueSettings> {
        self.settings.last_read()
    }

    /// Returns the settings. If they are older than the refresh interval, one caller refreshes them and waits
    /// for that up to [`SETTINGS_TIMEOUT`]; concurrent callers get the previous settings at once.
    pub(crate) async fn fresh_settings(&self) -> Arc<QueueSettings> {
        // The settings may be stored in another place than the messages, which may not answer.
        if let Some(reading) = self.refresh_settings()
            && tokio::time::timeout(SETTINGS_TIMEOUT, reading).await.is_err()
        {
            crate::log::warn!(queue = %self.name, "reading the queue's settings takes long; the previous ones remain in use meanwhile");
        }
        self.settings()
    }

    /// Refreshes the settings in a task, if they are older than the refresh interval and no other caller
    /// refreshes them.
    pub(crate) fn refresh_settings(&self) -> Option<JoinHandle<()>> {
        let reading = self.settings.refresh(self.storage.queues(), &self.name)?;
        Some(self.runtime().spawn(reading))
    }

    pub(crate) fn terms(&self, settings: &QueueSettings, defaults: &MessageDefaults) -> LeaseTerms {
        LeaseTerms {
            visibility: settings.timeout,
            max_run_time: defaults.max_run_time.unwrap_or(self.options.max_run_time).min(WITHOUT_END),
        }
    }

    /// Leases up to `count` messages. Also returns the time just before the request, from which deadlines are
    /// counted.
    pub(crate) async fn get(
        &self,
        count: u32,
        settings: &QueueSettings,
    ) -> Result<(Received, Instant), StoreError> {
        let options = GetMessages::new(count.clamp(1, MAX_MESSAGES), settings.timeout);
        let requested = Instant::now();
        let since = self.observers().trace().then(SystemTime::now);
        let received = self.store().get(&self.name, options).await;
        let (queue, observers) = (&self.name, self.observers());
        let messages = received.as_ref().map_or(0, |received| received.messages.len());
        let took = requested.elapsed();
        if let Some(since) = since {
            let error = received.as_ref().err().map(|error| error.kind().as_str());
            observers.span(|| Step::Receive { queue, since, took, messages }).end(None, error);
        }
        let received = received?;
        observers.emit(|| Event::Received { queue: queue.clone(), messages, took });
        Ok((received, requested))
    }

    /// Returns the pauses between requests to an empty queue, of at most `max` each.
    pub(crate) fn idle(&self, max: Duration) -> Idle {
        let store = self.store();
        Idle::new(self.runtime().clone(), store.subscribe(&self.name), store.announces_all(), max)
    }
}
