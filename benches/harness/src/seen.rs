//! The jobs that handlers have seen.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;

use crate::subject::Result;

/// The longest time to wait for handlers.
const PATIENCE: Duration = Duration::from_secs(300);

/// Counts handled jobs, and keeps the delays of those that say when they were sent.
#[derive(Debug, Default)]
pub struct Seen {
    /// The time that a job lasts in a trial; in a measurement jobs do nothing.
    lasting: Option<Duration>,
    count: AtomicU64,
    target: AtomicU64,
    reached: Notify,
    delays: Mutex<Vec<Duration>>,
}

impl Seen {
    /// Returns one whose jobs last for `time` and print when they begin and end.
    pub(crate) fn lasting(time: Duration) -> Self {
        Self { lasting: Some(time), ..Self::default() }
    }

    /// Does the job. The handler does nothing else; `sent` is 0 if the time does not matter.
    pub async fn handled(&self, sent: u64) {
        if sent != 0 {
            self.delays().push(Duration::from_nanos(nanos_now().saturating_sub(sent)));
        }
        if self.count.fetch_add(1, Ordering::AcqRel) + 1 >= self.target.load(Ordering::Acquire) {
            self.reached.notify_one();
        }
        if let Some(time) = self.lasting {
            // Boxed, so that the futures of measured jobs stay small.
            Box::pin(last(time)).await;
        }
    }

    /// Returns the number of handled jobs.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Waits until `target` jobs were handled since the beginning.
    ///
    /// # Errors
    /// It takes longer than five minutes.
    pub async fn wait_for(&self, target: u64) -> Result<()> {
        self.target.store(target, Ordering::Release);
        let all = async {
            while self.count() < target {
                self.reached.notified().await;
            }
        };
        let late = |_| format!("{} of {target} jobs handled in {PATIENCE:?}", self.count());
        Ok(tokio::time::timeout(PATIENCE, all).await.map_err(late)?)
    }

    /// Returns the sorted delays from send to handler.
    pub fn sorted_delays(&self) -> Vec<Duration> {
        let mut delays = self.delays().clone();
        delays.sort_unstable();
        delays
    }

    fn delays(&self) -> MutexGuard<'_, Vec<Duration>> {
        self.delays.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[expect(clippy::print_stdout, reason = "the script of the trial reads it")]
async fn last(time: Duration) {
    println!("begins");
    tokio::time::sleep(time).await;
    println!("ends");
}

/// Returns the wall clock, which the processes of one machine share, in nanoseconds since 1970.
pub fn nanos_now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
