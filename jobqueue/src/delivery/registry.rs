//! Maps queues and kinds to handlers.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::decode::Kinds;
use crate::error::{Error, ErrorKind};
use crate::handler::Registration;
use crate::message::MessageDefaults;
use crate::presence::EVERY_KIND;
use crate::settings::DEFAULT_LEASE;
use crate::storage::QueueName;

/// The text for operators about a message without a handler.
pub(super) const UNKNOWN_KIND: &str = "this worker has no handler for the kind";

#[derive(Debug)]
pub(crate) struct Registry(pub(crate) BTreeMap<QueueName, Arc<QueueHandlers>>);

#[derive(Debug)]
pub(crate) struct QueueHandlers {
    handlers: Vec<Registration>,
}

impl Registry {
    pub(crate) fn new(registrations: Vec<(Option<String>, Registration)>) -> Result<Self, Error> {
        let mut queues: BTreeMap<QueueName, Vec<Registration>> = BTreeMap::new();
        for (queue, registration) in registrations {
            let queue = QueueName::new(queue.as_deref().unwrap_or(registration.queue))?;
            queue.dead_letter()?;
            let queue_handlers = queues.entry(queue.clone()).or_default();
            if let Some(duplicate) = queue_handlers.iter().find(|other| overlap(other, &registration)) {
                let text = format!(
                    "two handlers on the queue `{queue}` accept the kind `{}` (the other is `{}`); give one of them another kind or queue",
                    registration.kind, duplicate.kind
                );
                return Err(Error::new(ErrorKind::Configuration, text));
            }
            queue_handlers.push(registration);
        }
        let queues =
            queues.into_iter().map(|(queue, handlers)| (queue, Arc::new(QueueHandlers { handlers })));
        Ok(Self(queues.collect()))
    }
}

fn overlap(one: &Registration, other: &Registration) -> bool {
    let names = |r: &Registration| [r.kind].into_iter().chain(r.aliases.iter().copied()).collect::<Vec<_>>();
    names(one).iter().any(|kind| (other.accepts)(kind)) || names(other).iter().any(|kind| (one.accepts)(kind))
}

impl QueueHandlers {
    /// Returns the largest number of jobs that one call of a handler takes.
    pub(crate) fn largest_chunk(&self) -> usize {
        self.all().map(|handler| handler.chunk).max().unwrap_or(1)
    }

    pub(crate) fn find(&self, kind: &str) -> Option<&Registration> {
        self.handlers.iter().find(|handler| (handler.accepts)(kind))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Registration> {
        self.handlers.iter()
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = &'static str> {
        self.handlers.iter().map(|handler| handler.kind)
    }

    pub(crate) fn all_kinds(&self) -> Vec<String> {
        let kinds = self.handlers.iter().flat_map(|handler| [&[handler.kind], handler.aliases].concat());
        kinds.map(str::to_owned).collect()
    }

    /// Returns the defaults of the queue: the longest lease of its types, with which all are received.
    pub(crate) fn defaults(&self) -> MessageDefaults {
        let leases = self.handlers.iter().map(|handler| handler.defaults.lease.unwrap_or(DEFAULT_LEASE));
        MessageDefaults::new().with_lease(leases.max().unwrap_or(DEFAULT_LEASE))
    }
}

impl Kinds for QueueHandlers {
    fn of_raw(&self) -> Option<&'static str> {
        match self.handlers.as_slice() {
            [only] if only.kind != EVERY_KIND => Some(only.kind),
            _ => None,
        }
    }

    fn newest(&self, kind: &str) -> Option<u32> {
        self.find(kind).map(|handler| handler.newest)
    }

    fn defaults(&self, kind: &str) -> MessageDefaults {
        self.find(kind).map_or_else(MessageDefaults::new, |handler| handler.defaults)
    }

    fn unknown(&self) -> &'static str {
        UNKNOWN_KIND
    }
}
