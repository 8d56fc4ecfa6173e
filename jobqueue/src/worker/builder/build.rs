//! Checks the configuration of a worker, and makes the worker.

use std::sync::Arc;
use std::time::Duration;

use super::WorkerBuilder;
use crate::error::{Error, ErrorKind};
use crate::handler::Registration;
use crate::storage::MAX_VISIBILITY;
use crate::worker::Worker;
use crate::worker::registry::Registry;
use crate::worker::shared::{Parts, Shared};

impl WorkerBuilder {
    /// Checks the configuration and returns the worker. No queue is opened yet.
    ///
    /// # Errors
    /// [`Configuration`](ErrorKind::Configuration), with a text that says what to change: there is no handler and no
    /// schedule, two handlers accept one kind, a handler asks for state that was not given, the concurrency is
    /// zero, or a limit is given for a queue or a kind that has no handler.
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
        let shared = Shared::new(Parts {
            storage: self.storage.heard_by(self.events),
            registry,
            options: self.options,
            core: self.core,
            states: Arc::new(self.states),
            hooks: self.hooks,
        });
        Ok(Worker::new(shared, self.background))
    }

    /// Checks what does not need the registry.
    fn check(&self) -> Result<(), Error> {
        let fail = |text: String| Err(Error::new(ErrorKind::Configuration, text));
        if let Some(name) = self.repeated_state {
            return fail(format!(
                "state of type `{name}` was given twice; wrap one of them in a type of its own"
            ));
        }
        if self.options.concurrency == 0 {
            return fail("a worker with a concurrency of 0 does nothing; give at least 1".to_owned());
        }
        let lease = self.core.overrides.timeout.unwrap_or(Duration::from_secs(1));
        if lease.is_zero() || lease > MAX_VISIBILITY {
            return fail(format!("a lease of {lease:?} is not possible; set more than 0 and at most 7 days"));
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
