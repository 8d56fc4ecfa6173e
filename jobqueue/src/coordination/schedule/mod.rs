//! Messages that are sent when it is time, once for all workers.
//!
//! ```text
//! leader of the schedule: wait for the next slot ─► write "slot pending" ─► send ─► write "slot done" ─► …
//! ```
//!
//! Both writes are conditional on nobody having written since. After a crash between them the next leader finds the slot
//! pending and sends it again under the same job id, unless it sees the message still waiting.

mod run;
mod state;
#[cfg(test)]
mod tests;
mod timetable;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::coordination::leader::check_lease;
use crate::error::{Error, ErrorKind};
use crate::message::QueueMessage;
use crate::worker::WorkerBuilder;
use run::Runner;
use timetable::Timetable;

/// The container of the schedules' states.
const CONTAINER: &str = "jobqueue-schedules";

/// The policy for slots that passed while no worker was running.
///
/// A slot that is less than a minute late is not missed yet and is sent under every policy, so that a fail-over, which takes
/// half a minute, leaves none out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CatchUp {
    /// They are left out: what is more than a minute late is not sent.
    Skip,
    /// The newest of them is sent, late, unless a slot after them is still on time.
    #[default]
    Once,
    /// The newest of them, at most this many, are sent in order. `All(0)` is [`Skip`](Self::Skip).
    All(u32),
}

/// The time to send: a cron expression in a time zone, or an interval.
///
/// # Names
/// State and job ids belong to a schedule's name. Workers that give the same name are one schedule; change the expression under
/// one name, and it goes on from the slot that was sent last. Without [`name`](Self::name), the name comes from the kind
/// of message and the expression, so changing the expression begins a new schedule.
///
/// # Summer time
/// An expression that names hours (`30 2 * * *`) fires once a day: a time that is skipped in spring fires at the first instant
/// after the gap, and a time that comes twice in autumn fires the first time. One that goes through hours or minutes
/// (`*/15 * * * *`) follows real time: what falls into the gap does not exist, what comes twice fires twice.
///
/// # Clocks
/// Slots are judged by the leader's wall clock. One that is set back sends nothing twice; one that is set forward makes
/// the slots in between missed ones. A schedule that was led by a clock far ahead has done the slots up to there: when the
/// clock is right again, nothing is sent until time has caught up, and the worker warns. To begin anew from now, delete the
/// schedule's blob in the container `jobqueue-schedules`, or give it another name.
///
/// ```
/// # fn main() -> Result<(), jobqueue::Error> {
/// use jobqueue::{CatchUp, QueueMessage, Schedule, Storage, Worker};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, QueueMessage)]
/// #[message(queue = "reports", kind = "report.daily")]
/// struct DailyReport {}
///
/// let at_six = Schedule::cron("0 6 * * *", "Europe/Berlin").name("daily-report").missed(CatchUp::Once);
/// let worker = Worker::builder(Storage::memory()).schedule_by(at_six, || DailyReport {}).build()?;
/// # drop(worker);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Schedule {
    name: Option<String>,
    timetable: Result<Timetable, String>,
    /// The text that the name is made of if none is given.
    definition: String,
    missed: CatchUp,
    /// Of the schedule's leader; its default if `None`.
    lease: Option<Duration>,
}

impl Schedule {
    /// By a cron expression of five fields, or six with seconds first, in an IANA time zone such as `Europe/Berlin`. Mistakes
    /// are reported by [`build`](WorkerBuilder::build).
    pub fn cron(expression: &str, zone: &str) -> Self {
        Self {
            name: None,
            timetable: Timetable::cron(expression, zone),
            definition: format!("{expression}\n{zone}"),
            missed: CatchUp::default(),
            lease: None,
        }
    }

    /// Every `interval`, at least a second, counted from 1970, so that all processes agree.
    pub fn every(interval: Duration) -> Self {
        Self {
            name: None,
            timetable: Timetable::every(interval),
            definition: format!("{interval:?}"),
            missed: CatchUp::default(),
            lease: None,
        }
    }

    /// Gives the schedule a durable name: 1–100 ASCII letters, digits and `-_.=/`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The policy for slots that passed while no worker was running. The default is [`CatchUp::Once`].
    #[must_use]
    pub fn missed(mut self, policy: CatchUp) -> Self {
        self.missed = policy;
        self
    }

    /// Sets how long a worker that died while it led the schedule may stand in the way: 15–60 whole seconds; the default is 30.
    /// Slots that come meanwhile are sent when another leads. Mistakes are reported by [`build`](WorkerBuilder::build).
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    fn into_runner<M: QueueMessage>(
        self,
        make: impl Fn(SystemTime) -> M + Send + Sync + 'static,
    ) -> Result<Runner<M>, Error> {
        let name = self.name.unwrap_or_else(|| {
            let digest = Sha256::digest(format!("{}\n{}", M::KIND, self.definition));
            let hex: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
            format!("unnamed-{hex}")
        });
        let wrong = |text: String| {
            let text = format!("the schedule `{name}` for `{}` is wrong: {text}", M::KIND);
            Error::new(ErrorKind::Configuration, text)
        };
        let timetable = self.timetable.map_err(wrong)?;
        if name.len() > 100 {
            return Err(wrong("its name has more than 100 characters".to_owned()));
        }
        let state =
            state::name(&name).map_err(|e| wrong("its name is not allowed".to_owned()).with_source(e))?;
        if let Some(lease) = self.lease {
            check_lease(lease).map_err(|e| wrong(e.to_string()))?;
        }
        let (missed, lease) = (self.missed, self.lease);
        Ok(Runner { name, state, timetable, missed, lease, make: Arc::new(make) })
    }
}

impl WorkerBuilder {
    /// Sends what `make` returns to its queue at the times of a cron expression in a time zone, once for all workers that use
    /// the storage. See [`Schedule`] for names, summer time and clocks.
    ///
    /// If `make` panics, or what it returns breaks the rules of its type, that is logged, and the slot is tried again every 5
    /// seconds while the slots behind it wait. After 6 tries it is left out, with an error in the log, and they go on. When
    /// the storage fails, slots are not left out for that.
    ///
    /// The job's id is `schedule/<name>/<slot>`. A slot is sent once; after a crash at the wrong moment there may be two messages of
    /// the same id. Runs also in processes that do not handle the message, or nothing at all.
    pub fn schedule<M: QueueMessage>(
        self,
        expression: &str,
        zone: &str,
        make: impl Fn() -> M + Send + Sync + 'static,
    ) -> Self {
        self.schedule_by(Schedule::cron(expression, zone), make)
    }

    /// The same at every multiple of `interval` since 1970.
    pub fn every<M: QueueMessage>(
        self,
        interval: Duration,
        make: impl Fn() -> M + Send + Sync + 'static,
    ) -> Self {
        self.schedule_by(Schedule::every(interval), make)
    }

    /// The same with a name or a policy for missed slots. Where the message depends on the time it is for, as a report on a
    /// day does, see [`schedule_with_slot`](Self::schedule_with_slot).
    pub fn schedule_by<M: QueueMessage>(
        self,
        schedule: Schedule,
        make: impl Fn() -> M + Send + Sync + 'static,
    ) -> Self {
        self.schedule_with_slot(schedule, move |_| make())
    }

    /// The same with the slot's own time given to `make`: the time the message is for, which is not the time at which it is
    /// made when slots were missed ([`CatchUp`]) or one leader takes over from another.
    ///
    /// ```
    /// # use jobqueue::{JobError, QueueMessage, Schedule, Storage, Worker}; use serde::{Deserialize, Serialize};
    /// use jobqueue::CatchUp;
    /// use std::time::UNIX_EPOCH;
    ///
    /// #[derive(Serialize, Deserialize, QueueMessage)]
    /// #[message(queue = "reports", kind = "report")]
    /// struct Report { until: u64 }
    /// # async fn report(_: Report) -> Result<(), JobError> { Ok(()) }
    ///
    /// // After a week without a worker: seven reports, each on its own day.
    /// let nightly = Schedule::cron("30 2 * * *", "Europe/Berlin").name("nightly").missed(CatchUp::All(7));
    /// let worker = Worker::builder(Storage::memory()).handle(report).schedule_with_slot(nightly, |slot| {
    ///     Report { until: slot.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() }
    /// });
    /// # worker.build().unwrap();
    /// ```
    pub fn schedule_with_slot<M: QueueMessage>(
        self,
        schedule: Schedule,
        make: impl Fn(SystemTime) -> M + Send + Sync + 'static,
    ) -> Self {
        match schedule.into_runner(make) {
            Ok(runner) => {
                let clash = format!(
                    "two schedules of this worker are called `{}`, so that only one of them would run; give each a name with \
                     `Schedule::name`",
                    runner.name
                );
                self.reserve_name(format!("schedule/{}", runner.name), clash)
                    .background(move |context| runner.run(context))
            }
            Err(mistake) => self.mistaken(mistake),
        }
    }
}
