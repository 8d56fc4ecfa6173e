//! A cache of the settings of a queue, which are read from its metadata.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::time::Instant;

use crate::message::MessageDefaults;
use crate::settings::{Metadata, QueueSettings, SettingOverrides, SettingWarning};
use crate::storage::{QueueName, Queues, StoreError};
use crate::sync::{read, write};

/// The age at which cached settings are read again: 30 seconds.
pub(super) const DEFAULT_REFRESH: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct SettingsCache {
    defaults: MessageDefaults,
    overrides: SettingOverrides,
    refresh: Duration,
    cached: RwLock<CachedSettings>,
    refreshing: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug)]
struct CachedSettings {
    settings: Arc<QueueSettings>,
    warnings: Vec<SettingWarning>,
    read: Instant,
}

impl SettingsCache {
    pub(crate) fn new(
        queue: &QueueName,
        metadata: &Metadata,
        defaults: MessageDefaults,
        overrides: SettingOverrides,
        refresh: Duration,
    ) -> Self {
        let (settings, warnings) = QueueSettings::resolve(metadata, &defaults, &overrides);
        warn(queue, &warnings, &[]);
        let cached = CachedSettings { settings: Arc::new(settings), warnings, read: Instant::now() };
        Self { defaults, overrides, refresh, cached: RwLock::new(cached), refreshing: Arc::default() }
    }

    pub(crate) fn last_read(&self) -> Arc<QueueSettings> {
        Arc::clone(&read(&self.cached).settings)
    }

    /// Returns a future that reads the metadata again, if the cached settings are too old and no other caller
    /// reads them. If the storage cannot be read, the cached settings stay. The caller must run the future to
    /// its end: a storage may take longer to answer than callers wait.
    pub(super) fn refresh(
        self: &Arc<Self>,
        store: &Arc<Queues>,
        queue: &QueueName,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        if read(&self.cached).read.elapsed() < self.refresh {
            return None;
        }
        let refreshing = Arc::clone(&self.refreshing).try_lock_owned().ok()?;
        let (cache, store, queue) = (Arc::clone(self), Arc::clone(store), queue.clone());
        Some(async move {
            let _refreshing = refreshing;
            if let Err(error) = cache.read(&store, &queue).await {
                crate::log::warn!(%queue, %error, "reading the queue's settings failed; the previous ones remain in use");
                write(&cache.cached).read = Instant::now();
            }
        })
    }

    async fn read(&self, store: &Queues, queue: &QueueName) -> Result<(), StoreError> {
        let began = Instant::now();
        let metadata = store.queue_metadata(queue).await?;
        let (settings, warnings) = QueueSettings::resolve(&metadata, &self.defaults, &self.overrides);
        let mut cached = write(&self.cached);
        warn(queue, &warnings, &cached.warnings);
        *cached = CachedSettings { settings: Arc::new(settings), warnings, read: began };
        Ok(())
    }
}

/// Logs each warning once, not every 30 seconds.
fn warn(queue: &QueueName, warnings: &[SettingWarning], logged: &[SettingWarning]) {
    for warning in warnings.iter().filter(|warning| !logged.contains(warning)) {
        crate::log::warn!(%queue, %warning, "a queue setting was ignored");
    }
}

#[cfg(test)]
mod tests {
    use jobqueue_testing::faults::{Fault, Faulty};

    use super::*;
    use crate::storage::Operation;

    /// Settings are as old as the request that read them, not as its answer.
    #[tokio::test(start_paused = true)]
    async fn slow_read_makes_settings_no_younger() {
        // Quiet: only the planned delay makes the answer late.
        let faulty = Faulty::quiet(&crate::memory::open());
        let (storage, queue) = (faulty.storage(), QueueName::new("work").unwrap());
        storage.queues().create_queue(&queue, &Metadata::new()).await.unwrap();
        let (defaults, overrides) = (MessageDefaults::new(), SettingOverrides::default());
        let cache =
            Arc::new(SettingsCache::new(&queue, &Metadata::new(), defaults, overrides, DEFAULT_REFRESH));
        faulty.plan(Operation::QueueMetadata, 1, Fault::DelayAfter(DEFAULT_REFRESH * 2));
        tokio::time::sleep(DEFAULT_REFRESH).await;
        for reads in 1..=2 {
            cache.refresh(storage.queues(), &queue).unwrap().await;
            assert_eq!(faulty.calls_of(Operation::QueueMetadata), reads);
        }
    }
}
