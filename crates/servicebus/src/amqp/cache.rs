//! Things that a connection has once for each queue, and that are made anew when they are gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::super::error::Fault;
use jobqueue_storage::sync::lock;

/// A thing that may come to its end at any time.
pub(super) trait Perishable: Clone {
    fn is_gone(&self) -> bool;
}

/// One thing for each queue. A queue for which one is being made holds up no other queue.
#[derive(Debug)]
pub(super) struct Cache<T> {
    entries: Mutex<HashMap<String, Arc<Entry<T>>>>,
}

#[derive(Debug)]
struct Entry<T> {
    present: Mutex<Option<T>>,
    making: tokio::sync::Mutex<()>,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self { entries: Mutex::default() }
    }
}

impl<T> Default for Entry<T> {
    fn default() -> Self {
        Self { present: Mutex::default(), making: tokio::sync::Mutex::default() }
    }
}

impl<T: Perishable> Cache<T> {
    /// Returns what is there for a queue and not gone.
    pub(super) fn present(&self, queue: &str) -> Option<T> {
        let entry = Arc::clone(lock(&self.entries).get(queue)?);
        let present = lock(&entry.present).clone();
        present.filter(|present| !present.is_gone())
    }

    /// Returns what is there for a queue, or the result of `make`.
    pub(super) async fn get(
        &self,
        queue: &str,
        make: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let entry = Arc::clone(lock(&self.entries).entry(queue.to_owned()).or_default());
        let _turn = entry.making.lock().await;
        let present = lock(&entry.present).clone();
        if let Some(present) = present.filter(|present| !present.is_gone()) {
            return Ok(present);
        }
        let made = make.await?;
        *lock(&entry.present) = Some(made.clone());
        Ok(made)
    }

    pub(super) fn set(&self, queue: &str, value: Option<T>) {
        let entry = Arc::clone(lock(&self.entries).entry(queue.to_owned()).or_default());
        *lock(&entry.present) = value;
    }

    pub(super) fn all(&self) -> Vec<(String, T)> {
        let entries = lock(&self.entries);
        let made =
            |(queue, entry): (&String, &Arc<Entry<T>>)| Some((queue.clone(), lock(&entry.present).clone()?));
        entries.iter().filter_map(made).collect()
    }
}
