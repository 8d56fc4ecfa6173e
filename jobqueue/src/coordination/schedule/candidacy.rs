//! One candidacy for all schedules of a worker.
//!
//! Each schedule has its own leader, because workers of several releases have different schedules. A worker
//! with more than one schedule first becomes the leader of its *set* of schedules, and only then a candidate
//! for each schedule. So the other workers with the same schedules watch a single lease, whatever the number
//! of schedules.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use scopeguard::guard;
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::coordination::leader::{DEFAULT_LEASE, Leader, Leadership, LeadershipEnd};
use crate::error::Error;
use crate::job::outcome::chain;
use crate::storage::Storage;
use crate::sync::lock;
use crate::worker::BackgroundContext;
use jobqueue_storage::fast::hex::to_hex;

/// The pause after an error.
pub(super) const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// The schedules of a worker, and whether the worker leads them as a set.
#[derive(Debug, Default)]
pub(super) struct Candidacy {
    /// The leases of the schedules, by name. Complete when the worker starts.
    schedules: Mutex<BTreeMap<String, Duration>>,
    /// True while the worker leads the set.
    leads: watch::Sender<bool>,
    /// Notified when another worker must lead a schedule.
    handed_over: Notify,
}

impl Candidacy {
    /// Adds a schedule. Returns true for the second schedule, which makes a set.
    pub(super) fn add(&self, name: &str, lease: Option<Duration>) -> bool {
        let mut schedules = lock(&self.schedules);
        let is_new = schedules.insert(name.to_owned(), lease.unwrap_or(DEFAULT_LEASE)).is_none();
        is_new && schedules.len() == 2
    }

    fn is_set(&self) -> bool {
        lock(&self.schedules).len() > 1
    }

    /// Returns the lease of the set: the shortest lease of a schedule, so that the set delays no schedule for
    /// longer than the schedule's own lease.
    fn lease(&self) -> Duration {
        lock(&self.schedules).values().min().copied().unwrap_or(DEFAULT_LEASE)
    }

    /// Runs `lead` whenever the worker leads its set of schedules, until the worker stops. `lead` itself ends
    /// when the worker stops.
    pub(super) async fn whenever_leading<F: Future<Output = ()>>(
        &self,
        stop: &CancellationToken,
        lead: impl Fn() -> F,
    ) {
        if !self.is_set() {
            return lead().await;
        }
        let mut leads = self.leads.subscribe();
        // An error would mean that the sender is gone, but it is in `self`.
        while stop
            .run_until_cancelled(leads.wait_for(|leads| *leads))
            .await
            .is_some_and(|leading| leading.is_ok())
        {
            let mut lost = leads.clone();
            let lost = async {
                drop(lost.wait_for(|leads| !*leads).await);
                // When the worker stops, the set is released too; `lead` then finishes its current step.
                if stop.is_cancelled() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                biased;
                () = lost => {}
                () = lead() => {}
            }
        }
    }

    /// Waits for the end of a schedule's term. Releases all schedules if another worker must lead this one:
    /// its lease was broken, or its task is blocked, for instance in the function that makes its message.
    pub(super) async fn step_down_after(self: Arc<Self>, term: Leadership) {
        if let Some(end @ (LeadershipEnd::Broken | LeadershipEnd::Blocked)) = term.ended().await {
            // The task of the term ends with the leadership of the set, and writes nothing.
            crate::log::warn!(
                term = term.term(),
                ?end,
                "leadership lost; this worker leads no schedule for now"
            );
            self.handed_over.notify_waiters();
        }
    }

    /// Stands as a candidate for the set until the worker stops. Retries after errors.
    pub(super) async fn run(self: Arc<Self>, context: BackgroundContext) {
        while let Err(error) = self.lead(context.storage(), &context.stop).await {
            crate::log::error!(error = %chain(&error), "leading the schedules failed; trying again");
            context.stop.run_until_cancelled(tokio::time::sleep(RETRY_PAUSE)).await;
        }
    }

    /// Stands as a candidate, and leads the set, until the worker stops.
    async fn lead(&self, storage: &Storage, stop: &CancellationToken) -> Result<(), Error> {
        let names = lock(&self.schedules).keys().map(|name| format!("{name}\n")).collect::<String>();
        let digest = to_hex(&Sha256::digest(names)[..12]);
        let leader = Leader::new(storage, format!("schedule-sets/{digest}"))?.lease(self.lease());
        while let Some(leadership) = stop.run_until_cancelled(leader.lead()).await {
            let term = leader.run_term(leadership?, async |leadership| {
                self.leads.send_replace(true);
                let _leading = guard(&self.leads, |leads| {
                    leads.send_replace(false);
                });
                leadership.while_polled(stop.run_until_cancelled(self.handed_over.notified())).await
            });
            if let Some(Some(())) = term.await {
                leader.yield_leadership().await;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::runtime::Runtime;

    #[test]
    fn longer_lease_of_one_schedule_delays_no_other() {
        let (set, seconds) = (Candidacy::default(), Duration::from_secs);
        assert!(!set.add("default", None));
        assert!(set.add("long", Some(seconds(60))));
        assert_eq!(set.lease(), DEFAULT_LEASE);
        assert!(!set.add("short", Some(seconds(15))));
        assert_eq!(set.lease(), seconds(15));
    }

    // audit 33, coordination B1
    #[tokio::test(start_paused = true)]
    async fn set_whose_task_is_blocked_is_led_by_another_worker() {
        let storage = Storage::memory().with_runtime(Runtime::paused());
        let (blocked, other, stop) = (Candidacy::default(), Candidacy::default(), CancellationToken::new());
        let mut task = pin!(blocked.lead(&storage, &stop));
        let mut leads = blocked.leads.subscribe();
        tokio::select! {
            biased;
            _ = &mut task => panic!("stopped"),
            led = leads.wait_for(|leads| *leads) => drop(led.unwrap()),
        }
        // From here on `task` is not polled, while its lease could be renewed.
        let mut leads = other.leads.subscribe();
        let takes_over = async {
            leads.wait_for(|leads| *leads).await.unwrap();
        };
        tokio::select! {
            biased;
            _ = other.lead(&storage, &stop) => panic!("stopped"),
            taken = tokio::time::timeout(Duration::from_secs(130), takes_over) => taken.unwrap(),
        }
    }
}
