//! The storage's clock, by which a group log counts every time.
//!
//! The clocks of senders and workers may be minutes apart, and the log compares times that different processes
//! have written. A process therefore asks the storage for its time, and adds the difference to its own clock.
//! This module does not know the log.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::log::Millis;
use super::store::CONTAINER;
use crate::clock::unix_millis;
use crate::runtime::Runtime;
use crate::storage::{BlobStore, ContainerName};
use crate::sync::lock;

/// The time after which the storage is asked again, because the process's clock may have been set.
const ASK_AGAIN: Duration = Duration::from_secs(600);
/// Few blobs have names with this prefix, mostly none.
const PREFIX: &str = "clock-";

pub(crate) struct StorageClock {
    blobs: Arc<dyn BlobStore>,
    runtime: Runtime,
    known: Mutex<Option<Difference>>,
}

/// The difference between the storage's clock and this process's.
#[derive(Debug, Clone, Copy)]
struct Difference {
    /// In milliseconds; negative if the storage's clock is behind.
    ahead: i64,
    asked: Instant,
}

impl StorageClock {
    pub(super) fn new(blobs: Arc<dyn BlobStore>, runtime: Runtime) -> Arc<Self> {
        Arc::new(Self { blobs, runtime, known: Mutex::default() })
    }

    /// Returns the storage's time. The first call waits for an answer of the storage; without one, the time
    /// is that of this process, and the next call asks again. A log cannot be changed then, either.
    pub(crate) async fn now(self: &Arc<Self>) -> Millis {
        let known = *lock(&self.known);
        match known {
            None => self.ask().await,
            Some(Difference { asked, .. }) if asked.elapsed() < ASK_AGAIN => {}
            Some(former) => {
                *lock(&self.known) = Some(Difference { asked: Instant::now(), ..former });
                let this = Arc::clone(self);
                drop(self.runtime.spawn(async move { this.ask().await }));
            }
        }
        self.known_now()
    }

    /// Returns the storage's time by the difference that is known, without a request.
    pub(crate) fn known_now(&self) -> Millis {
        let ahead = lock(&self.known).map_or(0, |known| known.ahead);
        Millis(unix_millis(self.runtime.now()).saturating_add_signed(ahead))
    }

    async fn ask(&self) {
        let Ok(container) = ContainerName::new(CONTAINER) else { return };
        let sent = unix_millis(self.runtime.now());
        // A refusal has a time, too.
        let answered = match self.blobs.list_blobs(&container, PREFIX, None).await {
            Ok(page) => page.now,
            Err(error) => match error.answered_at() {
                None => return,
                answered => answered,
            },
        };
        let own = sent.midpoint(unix_millis(self.runtime.now()));
        // A storage that returns no time runs on this machine.
        let ahead = answered.map_or(0, |storage| unix_millis(storage).wrapping_sub(own).cast_signed());
        *lock(&self.known) = Some(Difference { ahead, asked: Instant::now() });
    }
}

jobqueue_storage::debug_fields! {
    StorageClock {}
}
