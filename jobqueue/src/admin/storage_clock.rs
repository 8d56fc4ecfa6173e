//! The storage's clock, for comparisons with the times that it writes.

use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::upkeep::ClockSkew;
use super::{Action, Admin};
use crate::job::outcome::chain;
use crate::presence::Found;
use crate::sync::lock;

/// The time for which a comparison is believed.
const BELIEVED: Duration = Duration::from_secs(600);
/// The time by which a record may be ahead before it counts as written in the future: storages round.
const AHEAD: Duration = Duration::from_secs(2);

/// The last comparison of this process's clock with the storage's.
#[derive(Debug, Default)]
pub(super) struct Comparison(Mutex<Option<(Instant, ClockSkew)>>);

impl Admin {
    /// Returns the time by which the age of these records is told: that of this process, or of the storage if the records look as if
    /// the two differed.
    pub(super) async fn time_for(&self, records: &[Found]) -> SystemTime {
        let now = self.clock.now();
        let is_ahead = |found: &Found| found.modified.duration_since(now).is_ok_and(|by| by > AHEAD);
        match records.iter().any(|found| found.is_stale(now) || is_ahead(found)) {
            true => self.storage_time(now).await,
            false => now,
        }
    }

    async fn storage_time(&self, now: SystemTime) -> SystemTime {
        if !self.access.allows(Action::Inspect) {
            return now;
        }
        let known = *lock(&self.storage_clock.0);
        let skew = match known.filter(|(at, _)| at.elapsed() < BELIEVED) {
            Some((_, skew)) => skew,
            None => match self.clock_skew().await {
                Ok(skew) => {
                    *lock(&self.storage_clock.0) = Some((Instant::now(), skew));
                    skew
                }
                Err(error) => {
                    tracing::debug!(error = %chain(&error), "the storage's clock is not known");
                    return now;
                }
            },
        };
        skew.storage_time(now)
    }
}
