//! Schedules: messages that are sent at given times, once for all workers.
//!
//! ```text
//! leader of the schedule: wait for the next slot ─► write "slot pending" ─► send ─► write "slot done" ─► …
//! ```
//!
//! Both writes are conditional: they fail if another process has written since. The workers with the same
//! schedules elect one worker, which becomes the leader of all their schedules.
//!
//! | what happened | who continues, and how |
//! |---|---|
//! | the leader dies before "slot pending" | the next leader: the slot is due, or missed |
//! | the leader dies before "slot done" | the next leader sends the slot again under the same job id, unless it sees the message waiting |
//! | the leader was suspended, and another process leads | the write of the former leader is refused; it reads the state again |
//! | the leader's task is blocked for two minutes | as after its death; its thread that renews leases releases them |
//! | an operator pauses the schedule while a slot is pending | the slot is not sent again |
//! | the leader dies before it has answered a trigger | the next leader, as for a slot, under the id of the trigger |

mod candidacy;
pub(crate) mod operate;
mod record;
mod run;
mod state;
#[cfg(test)]
mod tests;
mod timetable;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

use crate::coordination::leader::check_lease;
use crate::error::{Error, ErrorKind};
use crate::message::QueueMessage;
use crate::worker::WorkerBuilder;
use candidacy::Candidacy;
use jobqueue_storage::fast::hex::to_hex;
use record::ScheduleDescription;
use run::Runner;
use timetable::Timetable;

const CONTAINER: &str = "jobqueue-schedules";

/// The policy for slots that passed while no worker was running.
///
/// A slot less than a minute late does not count as missed: it is sent under every policy. A fail-over takes
/// 36 seconds with the default lease. With a longer lease, or on Azure, where an expired lease may be blocked
/// for another minute, slots can be missed during a fail-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CatchUp {
    /// Skips missed slots: a slot more than a minute late is not sent.
    Skip,
    /// Sends the latest missed slot, unless a later slot is still on time.
    #[default]
    Once,
    /// Sends the latest missed slots in order, at most this many. `All(0)` is [`Skip`](Self::Skip).
    All(u32),
}

/// The times at which a message is sent: a cron expression in a time zone, or an interval.
///
/// # Names
/// State and job ids belong to a schedule's name. Workers that use the same name run one schedule. If you
/// change the expression but keep the name, the schedule continues after the slot that was sent last. Without
/// [`name`](Self::name), the name is made from the message's [original kind](QueueMessage::original_kind) and
/// the expression, so that another expression is a new schedule.
///
/// # Summer time
/// An expression that names hours and minutes, by lists and ranges too (`30 2,14 * * *`), fires once a day at
/// each of its times. A time that is skipped in spring fires at the first instant after the gap, once for all
/// times in the gap; a time that occurs twice in autumn fires at its first occurrence. An expression that
/// steps through hours, minutes or seconds (`*/15 * * * *`), or names more than 1,440 times of day, follows
/// real time: times in the gap do not exist, and times that occur twice fire twice.
///
/// # Clocks
/// The leader's wall clock decides which slots are due. If the clock is set back, nothing is sent twice. If
/// it is set forward, the slots in between are missed slots. So are the slots between the clocks of a leader
/// and of a successor whose clock is ahead by more than a minute, although a worker led all the time. If the
/// clock of a leader was far ahead, all slots up to that time are done: under a correct clock nothing is sent
/// until that time has come, and the worker logs a warning. To start again from now, delete the schedule's
/// blob in the container `jobqueue-schedules`, or give the schedule another name.
///
/// ```
/// # fn main() -> Result<(), jobqueue::Error> {
/// use jobqueue::schedule::{CatchUp, Schedule};
/// use jobqueue::{QueueMessage, Storage, Worker};
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
    /// The text from which the name of an unnamed schedule is made.
    definition: String,
    missed: CatchUp,
    /// The lease of the schedule's leader; `None` for the leader's default.
    lease: Option<Duration>,
}

impl Schedule {
    /// Returns a schedule from a cron expression in an IANA time zone such as `Europe/Berlin`. The expression
    /// has five fields, or six with seconds first. [`build`](WorkerBuilder::build) reports mistakes.
    pub fn cron(expression: &str, zone: &str) -> Self {
        Self {
            name: None,
            timetable: Timetable::cron(expression, zone),
            definition: format!("{expression}\n{zone}"),
            missed: CatchUp::default(),
            lease: None,
        }
    }

    /// Returns a schedule that fires at every multiple of `interval` since 1970, so that all processes agree.
    /// The interval is at least a second.
    pub fn every(interval: Duration) -> Self {
        Self {
            name: None,
            timetable: Timetable::every(interval),
            definition: format!("{interval:?}"),
            missed: CatchUp::default(),
            lease: None,
        }
    }

    jobqueue_storage::setters! {
        /// Gives the schedule a durable name: 1–100 ASCII letters, digits and `-_.=/`.
        name(name some String);

        /// Sets the policy for slots that passed while no worker was running. The default is
        /// [`CatchUp::Once`].
        missed(policy: CatchUp) => missed;

        /// Sets the lease of the schedule's leader: 15–60 whole seconds; the default is 30. If the leading
        /// worker dies, its lease blocks the schedule for up to this time; the next leader then sends the
        /// slots of that time. [`build`](WorkerBuilder::build) reports mistakes.
        lease(lease: Duration);
    }

    fn into_runner<M: QueueMessage>(
        self,
        make: impl Fn(SystemTime) -> M + Send + Sync + 'static,
    ) -> Result<Runner<M>, Error> {
        let name = self.name.unwrap_or_else(|| {
            let digest = Sha256::digest(format!("{}\n{}", M::original_kind(), self.definition));
            format!("unnamed-{}", to_hex(&digest[..12]))
        });
        let wrong = |text: String| {
            let text = format!("the schedule `{name}` for `{}` is wrong: {text}", M::KIND);
            Error::new(ErrorKind::Configuration, text)
        };
        let timetable = self.timetable.map_err(wrong)?;
        if name.len() > 100 {
            return Err(wrong("its name has more than 100 characters".to_owned()));
        }
        let state = state::name(&name).map_err(|e| wrong(e.to_string()))?;
        if let Some(lease) = self.lease {
            check_lease(lease).map_err(|e| wrong(e.to_string()))?;
        }
        let (missed, lease) = (self.missed, self.lease);
        let cron = self.definition.split_once('\n');
        let about = ScheduleDescription {
            queue: Some(M::QUEUE.to_owned()),
            kind: Some(M::KIND.to_owned()),
            cron: cron.map(|(cron, _)| cron.to_owned()),
            zone: cron.map(|(_, zone)| zone.to_owned()),
            every_ms: timetable.millis(),
        };
        let make = Arc::new(make);
        Ok(Runner { name, state, about, timetable, missed, lease, make, sent: Mutex::default() })
    }
}

impl WorkerBuilder {
    /// Sends the message that `make` returns at the times of a cron expression in a time zone, once for all
    /// workers that use the storage. See [`Schedule`] for names, summer time and clocks.
    ///
    /// The job's id is `schedule/<name>/<slot>`. A slot is sent once, with these exceptions: there may be two
    /// messages with the same id if the leading process crashes, loses the leadership, or stops while the
    /// storage takes longer than 3 seconds, before it has recorded that the slot was sent; or if the answer
    /// to a send was lost. The slot is then sent again, after 5 seconds, unless a peek shows its message
    /// among the first 32 messages. The worker needs no handler for the message, nor any handler at all.
    ///
    /// `make` and the handlers must not block the worker's runtime: after two minutes the worker loses its
    /// schedules to another worker, and a slot that it was sending may be sent again. A slot whose `make` has
    /// blocked for so long is not sent, and counts as a failed attempt.
    ///
    /// If `make` or the message panics, or the message breaks the rules of its type, the worker logs the
    /// failure and retries the slot every 5 seconds, while later slots wait. After 6 attempts it logs an
    /// error, skips the slot and continues with the next. If the storage does not accept a slot, the slot is
    /// sent as soon as the storage accepts it; slots that are more than a minute late by then count as missed
    /// ([`CatchUp`]).
    pub fn schedule<M: QueueMessage>(
        self,
        expression: &str,
        zone: &str,
        make: impl Fn() -> M + Send + Sync + 'static,
    ) -> Self {
        self.schedule_by(Schedule::cron(expression, zone), make)
    }

    /// Like [`schedule`](Self::schedule), at every multiple of `interval` since 1970.
    pub fn every<M: QueueMessage>(
        self,
        interval: Duration,
        make: impl Fn() -> M + Send + Sync + 'static,
    ) -> Self {
        self.schedule_by(Schedule::every(interval), make)
    }

    /// Like [`schedule`](Self::schedule), for a [`Schedule`] with a name or a policy for missed slots. If the
    /// message depends on its slot's time, as a daily report does, use
    /// [`schedule_with_slot`](Self::schedule_with_slot).
    pub fn schedule_by<M: QueueMessage>(
        self,
        schedule: Schedule,
        make: impl Fn() -> M + Send + Sync + 'static,
    ) -> Self {
        self.schedule_with_slot(schedule, move |_| make())
    }

    /// Like [`schedule_by`](Self::schedule_by), but passes the slot's time to `make`: the time for which the
    /// message is sent. The slot's time can differ from the present time if slots were missed ([`CatchUp`])
    /// or another leader took over.
    ///
    /// If an operator triggers the schedule, the slot's time is that of the trigger. A day that is derived
    /// from it is then also that of a slot: an id that holds the day alone, as of a batch, is the same for
    /// both runs. Use the whole time, with hours, minutes and seconds, to tell the runs apart.
    ///
    /// ```
    /// # use jobqueue::schedule::Schedule;
    /// # use jobqueue::{JobError, QueueMessage, Storage, Worker}; use serde::{Deserialize, Serialize};
    /// use jobqueue::schedule::CatchUp;
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
        let mut builder = self;
        match schedule.into_runner(make) {
            Ok(runner) => {
                let clash = format!(
                    "two schedules of this worker are called `{}`, so that only one of them would run; give each a name with \
                     `Schedule::name`",
                    runner.name
                );
                let candidacy = builder.shared::<Candidacy>();
                if candidacy.add(&runner.name, runner.lease) {
                    let candidacy = Arc::clone(&candidacy);
                    builder = builder.background(move |context| candidacy.run(context));
                }
                builder
                    .reserve_name(format!("schedule/{}", runner.name), clash)
                    .background(move |context| runner.run(candidacy, context))
            }
            Err(mistake) => builder.mistaken(mistake),
        }
    }
}
