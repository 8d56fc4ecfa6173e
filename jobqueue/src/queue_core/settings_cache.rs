//! The settings of a queue, read from its metadata and refreshed.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::time::Instant;

use crate::message::MessageDefaults;
use crate::settings::{Metadata, QueueSettings, SettingOverrides, SettingWarning};
use crate::storage::{QueueName, Queues, StoreError};
use crate::sync::{read, write};

/// The age at which cached settings are read again: 30 seconds.
pub(super) const REFRESH: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct SettingsCache {
    defaults: MessageDefaults,
    overrides: SettingOverrides,
    refresh: Duration,
    present: RwLock<Present>,
    refreshing: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Present {
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
        let present = Present { settings: Arc::new(settings), warnings, read: Instant::now() };
        Self {
            defaults,
            overrides,
            refresh,
            present: RwLock::new(present),
            refreshing: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the settings as they were last read.
    pub(crate) fn present(&self) -> Arc<QueueSettings> {
        Arc::clone(&read(&self.present).settings)
    }

    /// Returns the current settings. If the cached ones are too old, one caller reads the metadata while others
    /// continue with the cached ones. If the storage cannot be read, the cached settings stay.
    pub(crate) async fn fresh(&self, store: &Queues, queue: &QueueName) -> Arc<QueueSettings> {
        let is_old = {
            let present = read(&self.present);
            present.read.elapsed() >= self.refresh
        };
        if is_old && let Ok(_only_one) = self.refreshing.try_lock() {
            self.read(store, queue).await.unwrap_or_else(|error| {
                crate::log::warn!(%queue, %error, "reading the queue's settings failed; the previous ones remain in use");
                let mut present = write(&self.present);
                present.read = Instant::now();
            });
        }
        self.present()
    }

    async fn read(&self, store: &Queues, queue: &QueueName) -> Result<(), StoreError> {
        let began = Instant::now();
        let metadata = store.queue_metadata(queue).await?;
        let (settings, warnings) = QueueSettings::resolve(&metadata, &self.defaults, &self.overrides);
        let mut present = write(&self.present);
        warn(queue, &warnings, &present.warnings);
        *present = Present { settings: Arc::new(settings), warnings, read: began };
        Ok(())
    }
}

/// Logs each warning once, not every 30 seconds.
fn warn(queue: &QueueName, warnings: &[SettingWarning], told: &[SettingWarning]) {
    for warning in warnings.iter().filter(|warning| !told.contains(warning)) {
        crate::log::warn!(%queue, %warning, "a queue setting was ignored");
    }
}

#[cfg(test)]
mod tests {
    use jobqueue_testing::faults::{Fault, Faulty};

    use super::*;
    use crate::storage::Operation;

    /// The settings of an answer are those of the time at which it was asked for.
    #[tokio::test(start_paused = true)]
    async fn slow_read_makes_settings_no_younger() {
        // Quiet: only the planned delay makes the answer late.
        let faulty = Faulty::quiet(&crate::memory::open());
        let (storage, queue) = (faulty.storage(), QueueName::new("work").unwrap());
        storage.queues().create_queue(&queue, &Metadata::new()).await.unwrap();
        let (defaults, overrides) = (MessageDefaults::new(), SettingOverrides::default());
        let cache = SettingsCache::new(&queue, &Metadata::new(), defaults, overrides, REFRESH);
        faulty.plan(Operation::QueueMetadata, 1, Fault::DelayAfter(REFRESH * 2));
        tokio::time::sleep(REFRESH).await;
        for reads in 1..=2 {
            let _ = cache.fresh(storage.queues(), &queue).await;
            assert_eq!(faulty.calls_of(Operation::QueueMetadata), reads);
        }
    }
}
