//! The wake-up bell between a storage and those who wait for messages.

use tokio::sync::watch;

/// The ringing side: one for each queue of a storage.
#[derive(Debug)]
pub struct Notifier(watch::Sender<()>);

impl Notifier {
    /// A bell nobody listens to yet.
    pub fn new() -> Self {
        Self(watch::Sender::new(()))
    }

    /// Wakes everyone who waits, and those who look next.
    pub fn notify(&self) {
        self.0.send_replace(());
    }

    /// A listener that hears what rings from now on.
    pub fn subscribe(&self) -> Subscription {
        Subscription(vec![self.0.subscribe()])
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
pub struct Subscription(Vec<watch::Receiver<()>>);

impl Subscription {
    /// Waits until the bell has rung since the last call, or for ever if the storage is gone.
    ///
    /// # Cancel safety
    /// A ring that was not returned is not lost.
    pub async fn wait(&mut self) {
        let changes = self.0.iter_mut().map(|notifier| {
            Box::pin(async {
                if notifier.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            })
        });
        let changes: Vec<_> = changes.collect();
        if changes.is_empty() {
            std::future::pending::<()>().await;
        }
        futures_util::future::select_all(changes).await;
    }

    /// Hears several bells as one.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }
}
