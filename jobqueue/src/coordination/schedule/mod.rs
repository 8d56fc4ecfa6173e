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
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::vocabulary::error::{Error, ErrorKind};
use crate::vocabulary::message::QueueMessage;
use crate::worker::WorkerBuilder;
use run::Runner;
use timetable::Timetable;

/// The container of the schedules' states.
const CONTAINER: &str = "jobqueue-schedules";

/// What happens to slots that passed while no worker was running.
///
/// A slot that is less than a minute late is not missed yet and is sent under every policy, so that a fail-over, which takes
/// half a minute, leaves none out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Missed {
    /// They are left out: what is more than a minute late is not sent.
    Skip,
    /// The newest of them is sent, late, unless a slot after them is still on time.
    #[default]
    Once,
    /// The newest of them, at most this many, are sent in order.
    All(u32),
}

/// When to send: a cron expression in a time zone, or an interval.
///
/// # Names
/// State and job ids belong to a schedule's name. Workers that give the same name are one schedule; change the expression under
/// one name, and it goes on from the slot that was sent last. Without [`named`](Self::named), the name comes from the kind
/// of message and the expression, so changing the expression begins a new schedule.
///
/// # Summer time
/// An expression that names hours (`30 2 * * *`) fires once a day: a time that is skipped in spring fires at the first instant
/// after the gap, and a time that comes twice in autumn fires the first time. One that goes through hours or minutes
/// (`*/15 * * * *`) follows real time: what falls into the gap does not exist, what comes twice fires twice.
///
/// # Clocks
/// Slots are judged by the leader's wall clock. One that is set back sends nothing twice; one that is set forward makes
/// the slots in between missed ones.
#[derive(Debug, Clone)]
pub struct Schedule {
    name: Option<String>,
    timetable: Result<Timetable, String>,
    /// What the name is made of, if none is given.
    definition: String,
    missed: Missed,
}

impl Schedule {
    /// By a cron expression of five fields, or six with seconds first, in an IANA time zone such as `Europe/Berlin`. Mistakes
    /// are reported by [`build`](WorkerBuilder::build).
    pub fn cron(expression: &str, zone: &str) -> Self {
        Self {
            name: None,
            timetable: Timetable::cron(expression, zone),
            definition: format!("{expression}\n{zone}"),
            missed: Missed::default(),
        }
    }

    /// Every `interval`, at least a second, counted from 1970, so that all processes agree.
    pub fn every(interval: Duration) -> Self {
        Self {
            name: None,
            timetable: Timetable::every(interval),
            definition: format!("{interval:?}"),
            missed: Missed::default(),
        }
    }

    /// Gives the schedule a durable name: 1–100 ASCII letters, digits and `-_.=/`.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// What happens to slots that passed while no worker was running. The default is [`Missed::Once`].
    #[must_use]
    pub fn missed(mut self, policy: Missed) -> Self {
        self.missed = policy;
        self
    }

    fn into_runner<M: QueueMessage>(
        self,
        make: impl Fn() -> M + Send + Sync + 'static,
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
        Ok(Runner { name, state, timetable, missed: self.missed, make: Arc::new(make) })
    }
}

impl WorkerBuilder {
    /// Sends what `make` returns to its queue at the times of a cron expression in a time zone, once for all workers that use
    /// the storage. See [`Schedule`] for names, summer time and clocks.
    ///
    /// The job's id is `schedule/<name>/<slot>`. A slot is sent once; after a crash at the wrong moment there may be two messages of
    /// the same id. Runs also in processes that do not handle the message; each needs some handler.
    #[must_use]
    pub fn schedule<M: QueueMessage>(
        self,
        expression: &str,
        zone: &str,
        make: impl Fn() -> M + Send + Sync + 'static,
    ) -> Self {
        self.schedule_by(Schedule::cron(expression, zone), make)
    }

    /// The same at every multiple of `interval` since 1970.
    #[must_use]
    pub fn every<M: QueueMessage>(
        self,
        interval: Duration,
        make: impl Fn() -> M + Send + Sync + 'static,
    ) -> Self {
        self.schedule_by(Schedule::every(interval), make)
    }

    /// The same with a name or a policy for missed slots.
    #[must_use]
    pub fn schedule_by<M: QueueMessage>(
        self,
        schedule: Schedule,
        make: impl Fn() -> M + Send + Sync + 'static,
    ) -> Self {
        match schedule.into_runner(make) {
            Ok(runner) => self.background(move |context| runner.run(context)),
            Err(mistake) => self.mistaken(mistake),
        }
    }
}
