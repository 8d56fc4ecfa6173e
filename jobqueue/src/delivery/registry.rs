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

/// The prefix of the kinds that the framework gives to payloads without an envelope, and to dead letters that
/// keep a text.
const OWN_KINDS: &str = "jobqueue.";

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
            check_names(&registration)?;
            let queue_handlers = queues.entry(queue.clone()).or_default();
            for other in &*queue_handlers {
                check_disjoint(&queue, other, &registration)?;
            }
            queue_handlers.push(registration);
        }
        let queues =
            queues.into_iter().map(|(queue, handlers)| (queue, Arc::new(QueueHandlers { handlers })));
        Ok(Self(queues.collect()))
    }
}

/// Checks that no kind is reserved for the framework. The derive macro refuses reserved kinds, too.
fn check_names(handler: &Registration) -> Result<(), Error> {
    let is_own = |kind: &&&str| **kind == EVERY_KIND || kind.starts_with(OWN_KINDS);
    match handler.kinds.iter().find(is_own) {
        Some(kind) if !handler.takes_all => {
            let text = format!(
                "the kind `{kind}` of a handler is one of the framework's own; choose a name that is not `{EVERY_KIND}` and does not begin with `{OWN_KINDS}`"
            );
            Err(Error::new(ErrorKind::Configuration, text))
        }
        _ => Ok(()),
    }
}

/// Checks that the handlers accept no common kind.
fn check_disjoint(queue: &QueueName, first: &Registration, second: &Registration) -> Result<(), Error> {
    let shared = first.kinds.iter().find(|kind| second.accepts(kind));
    let Some(kind) = shared.or_else(|| second.kinds.iter().find(|kind| first.accepts(kind))) else {
        return Ok(());
    };
    let text = format!(
        "two handlers on the queue `{queue}` accept the kind `{kind}`, those for `{}` and `{}`; give one of them another queue, or other kinds, aliases and former versions",
        first.message_type, second.message_type
    );
    Err(Error::new(ErrorKind::Configuration, text))
}

impl QueueHandlers {
    /// Returns the maximum number of jobs that one call of a handler takes.
    pub(crate) fn largest_chunk(&self) -> usize {
        self.all().map(|handler| handler.chunk).max().unwrap_or(1)
    }

    pub(crate) fn find(&self, kind: &str) -> Option<&Registration> {
        self.handlers.iter().find(|handler| handler.accepts(kind))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Registration> {
        self.handlers.iter()
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = &'static str> {
        self.handlers.iter().map(|handler| handler.kind)
    }

    pub(crate) fn all_kinds(&self) -> Vec<String> {
        self.handlers.iter().flat_map(|handler| &handler.kinds).map(|kind| (*kind).to_owned()).collect()
    }

    /// Returns the defaults of the queue: all messages are received with the longest lease of their types.
    pub(crate) fn defaults(&self) -> MessageDefaults {
        let leases = self.handlers.iter().map(|handler| handler.defaults.lease.unwrap_or(DEFAULT_LEASE));
        MessageDefaults::new().with_lease(leases.max().unwrap_or(DEFAULT_LEASE))
    }

    /// Calls `read` with the kinds of the handlers.
    pub(super) fn with_kinds<T>(&self, read: impl FnOnce(&Kinds<'_>) -> T) -> T {
        let of_raw = match self.handlers.as_slice() {
            [only] if !only.takes_all => Some(only.kind),
            _ => None,
        };
        let find = |kind: &str| self.find(kind).map(|handler| (handler.newest, handler.defaults));
        read(&Kinds { of_raw, find: &find, unknown: UNKNOWN_KIND })
    }
}
