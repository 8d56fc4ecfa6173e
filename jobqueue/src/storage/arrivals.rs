//! The wake-up bell between a storage and those who wait for messages.

use tokio::sync::watch;

/// The ringing side: one for each queue of a storage.
#[derive(Debug)]
pub struct Bell(watch::Sender<()>);

impl Bell {
    /// A bell nobody listens to yet.
    pub fn new() -> Self {
        Self(watch::Sender::new(()))
    }

    /// Wakes everyone who waits, and those who look next.
    pub fn ring(&self) {
        self.0.send_replace(());
    }

    /// A listener that hears what rings from now on.
    pub fn listen(&self) -> Arrivals {
        Arrivals(self.0.subscribe())
    }
}

impl Default for Bell {
    fn default() -> Self {
        Self::new()
    }
}

/// The listening side: remembers that it rang since the last wait, so that no arrival between a look at the
/// queue and the wait is missed.
#[derive(Debug, Clone)]
pub struct Arrivals(watch::Receiver<()>);

impl Arrivals {
    /// Waits until the bell has rung since the last call, or for ever if the storage is gone.
    ///
    /// # Cancel safety
    /// A ring that was not returned is not lost.
    pub async fn wait(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
