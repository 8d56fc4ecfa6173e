//! The wake-up bell between a storage and those who wait for messages.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// The ringing side: one for each queue of a storage.
#[derive(Debug)]
pub struct Notifier(Arc<Bell>);

/// Not a `watch` channel, which wakes those who wait in a random order: a simulation must repeat.
#[derive(Debug, Default)]
struct Bell {
    rings: AtomicU64,
    waiting: Notify,
}

impl Notifier {
    /// A bell nobody listens to yet.
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// Wakes everyone who waits, and those who look next.
    pub fn notify(&self) {
        self.0.rings.fetch_add(1, Ordering::AcqRel);
        self.0.waiting.notify_waiters();
    }

    /// A listener that hears what rings from now on.
    pub fn subscribe(&self) -> Subscription {
        let heard = self.0.rings.load(Ordering::Acquire);
        Subscription(vec![Listener { bell: Arc::clone(&self.0), heard }])
    }
}

impl Default for Notifier {
    fn default() -> Self {
        Self::new()
    }
}

/// The listening side: remembers that it rang since the last wait, so that no arrival between a look at the
/// queue and the wait is missed.
#[derive(Debug, Clone)]
pub struct Subscription(Vec<Listener>);

#[derive(Debug, Clone)]
struct Listener {
    bell: Arc<Bell>,
    /// The number of rings that were heard.
    heard: u64,
}

impl Listener {
    async fn wait(&mut self) {
        loop {
            let mut rung = pin!(self.bell.waiting.notified());
            // Before the count is read, so that no ring between the two is missed.
            rung.as_mut().enable();
            let rings = self.bell.rings.load(Ordering::Acquire);
            if rings != self.heard {
                self.heard = rings;
                return;
            }
            rung.await;
        }
    }
}

impl Subscription {
    /// Waits until the bell has rung since the last call, or for ever if the storage is gone.
    ///
    /// # Cancel safety
    /// A ring that was not returned is not lost.
    pub async fn wait(&mut self) {
        let waits: Vec<_> = self.0.iter_mut().map(|listener| Box::pin(listener.wait())).collect();
        if waits.is_empty() {
            std::future::pending::<()>().await;
        }
        futures_util::future::select_all(waits).await;
    }

    /// Hears several bells as one.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }
}
