//! A queue's settings, read from its metadata and read again when they are old.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::time::Instant;

use crate::message::MessageDefaults;
use crate::name::QueueName;
use crate::settings::metadata::Metadata;
use crate::settings::{QueueSettings, SettingOverrides, SettingWarning};
use crate::storage::{QueueStore, StoreError};
use crate::sync::{read, write};

/// The greatest age that settings may be: 30 seconds.
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
    pub(super) fn new(
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

    /// Returns what was read last.
    pub(super) fn present(&self) -> Arc<QueueSettings> {
        Arc::clone(&read(&self.present).settings)
    }

    /// Returns what holds now; reads the metadata if what is known is too old. One caller reads, the others go on with what is
    /// known. If the storage cannot be read, the old settings stay.
    pub(super) async fn fresh(&self, store: &dyn QueueStore, queue: &QueueName) -> Arc<QueueSettings> {
        let is_old = {
            let present = read(&self.present);
            present.read.elapsed() >= self.refresh
        };
        if is_old && let Ok(_only_one) = self.refreshing.try_lock() {
            self.read(store, queue).await.unwrap_or_else(|error| {
                tracing::warn!(%queue, %error, "queue settings could not be read; the former ones stay");
                let mut present = write(&self.present);
                present.read = Instant::now();
            });
        }
        self.present()
    }

    async fn read(&self, store: &dyn QueueStore, queue: &QueueName) -> Result<(), StoreError> {
        let metadata = store.queue_metadata(queue).await?;
        let (settings, warnings) = QueueSettings::resolve(&metadata, &self.defaults, &self.overrides);
        let mut present = write(&self.present);
        warn(queue, &warnings, &present.warnings);
        *present = Present { settings: Arc::new(settings), warnings, read: Instant::now() };
        Ok(())
    }
}

/// Tells each warning once, not every 30 seconds.
fn warn(queue: &QueueName, warnings: &[SettingWarning], told: &[SettingWarning]) {
    for warning in warnings.iter().filter(|warning| !told.contains(warning)) {
        tracing::warn!(%queue, %warning, "queue setting not used");
    }
}
