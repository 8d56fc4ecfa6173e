//! Checks the configuration of a worker, and builds the worker.

use std::time::Duration;

use super::WorkerBuilder;
use crate::delivery::{DeliveryState, Registry};
use crate::error::{Error, ErrorKind};
use crate::handler::Registration;
use crate::queue_core::check_length;
use crate::storage::MAX_VISIBILITY;
use crate::worker::Worker;
use crate::worker::state::WorkerState;

impl WorkerBuilder {
    /// Checks the configuration and returns the worker. Opens no queue yet. Logs a warning for each queue
    /// whose [limit](Self::limit_queue) is above the number of slots that it can have.
    ///
    /// # Errors
    /// [`Configuration`](ErrorKind::Configuration), with a text that says how to correct the mistake: there
    /// is no handler and no schedule, two handlers accept the same kind, a kind is `*` or begins with
    /// `jobqueue.`, a handler needs state that was not set, the concurrency is zero, the
    /// [source](Self::source) is empty or longer than 1,024 bytes, a limit is set for a queue or a kind that
    /// has no handler, or a handler takes more jobs at once than can run.
    pub fn build(mut self) -> Result<Worker, Error> {
        if let Some(mistake) = self.mistake.take() {
            return Err(mistake);
        }
        self.check()?;
        let wrap = |mut registration: Registration| {
            registration.service = self.layers.iter().fold(registration.service, |inner, layer| layer(inner));
            registration
        };
        let registrations = self.registrations.into_iter().map(|(queue, r)| (queue, wrap(r))).collect();
        let registry = Registry::new(registrations)?;
        self.options.limits.check(&registry)?;
        self.options.limits.check_chunks(self.options.concurrency, &registry)?;
        self.options.limits.warn_of_unreachable(self.options.concurrency, &registry);
        let storage = self.storage.observed_by(self.events);
        let delivery_state =
            DeliveryState::new(storage, self.delivery_options, self.core, self.states, self.hooks);
        Ok(Worker::new(WorkerState::new(delivery_state, registry, self.options), self.background))
    }

    /// Checks the options that do not depend on the registry.
    fn check(&self) -> Result<(), Error> {
        let fail = |text: String| Err(Error::new(ErrorKind::Configuration, text));
        if self.options.concurrency == 0 {
            return fail("a worker with a concurrency of 0 does nothing; give at least 1".to_owned());
        }
        let lease = self.core.overrides.timeout.unwrap_or(Duration::from_secs(1));
        if lease.is_zero() || lease > MAX_VISIBILITY {
            return fail(format!("a lease of {lease:?} is invalid; set more than 0 and at most 7 days"));
        }
        if let Err(error) = check_length("source", &self.core.source) {
            return fail(format!("no job can be sent under this source: {error}"));
        }
        if self.registrations.is_empty() && self.background.is_empty() {
            return fail("a worker without handlers and schedules does nothing; add `.handle(…)`".to_owned());
        }
        for (_, registration) in &self.registrations {
            if let Err(error) = (registration.check)(&self.states) {
                let text = format!("the handler for `{}` cannot be called: {error}", registration.kind);
                return fail(text);
            }
        }
        Ok(())
    }
}
