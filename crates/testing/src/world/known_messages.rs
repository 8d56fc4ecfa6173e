//! Maps the messages of a world to their jobs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use jobqueue::storage::{MessageRef, QueueName};
use jobqueue_storage::sync::lock;

use super::ledger::subject;

/// The job of each message that any process has put or received, by account, queue and message.
#[derive(Debug, Default)]
pub(super) struct KnownMessages(Mutex<HashMap<(usize, String, String), Arc<str>>>);

impl KnownMessages {
    pub(super) fn add(&self, place: (usize, &QueueName), message: &MessageRef, job: &Arc<str>) {
        let key = (place.0, place.1.to_string(), message.id.to_string());
        lock(&self.0).insert(key, Arc::clone(job));
    }

    pub(super) fn job(&self, place: (usize, &QueueName), message: &MessageRef) -> Option<Arc<str>> {
        lock(&self.0).get(&(place.0, place.1.to_string(), message.id.to_string())).cloned()
    }
}

/// Returns the job of a message with this text, or `None` if the text is not an event.
pub(super) fn job_of(text: &str) -> Option<Arc<str>> {
    #[derive(serde::Deserialize)]
    struct Event {
        id: String,
        source: String,
    }
    let event: Event = serde_json::from_str(text).ok()?;
    Some(subject(&event.source, &event.id))
}
