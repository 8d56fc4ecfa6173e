//! A worker's cache of the batches whose children it runs. It keeps facts that never change, because the id
//! of a batch is not used again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::error::Error;
use crate::sync::lock;

const MAX_BATCHES: usize = 1_000;

#[derive(Debug, Default)]
pub(super) struct KnownBatches(Mutex<BTreeMap<String, Arc<KnownBatch>>>);

impl KnownBatches {
    pub(super) fn get(&self, id: &str) -> Option<Arc<KnownBatch>> {
        lock(&self.0).get(id).cloned()
    }

    /// Keeps a batch whose secret was read. Children that begin together share the entry.
    pub(super) fn insert(&self, id: &str, secret: String) -> Arc<KnownBatch> {
        let mut batches = lock(&self.0);
        if let Some(known) = batches.get(id).filter(|known| known.secret == secret) {
            return Arc::clone(known);
        }
        let batch = Arc::new(KnownBatch { secret, children: OnceLock::new(), completions: Mutex::default() });
        if batches.len() >= MAX_BATCHES {
            batches.clear();
        }
        batches.insert(id.to_owned(), Arc::clone(&batch));
        batch
    }
}

#[derive(Debug)]
pub(super) struct KnownBatch {
    pub(super) secret: String,
    /// The number of children, once the batch is sealed.
    children: OnceLock<u64>,
    /// The running completions of groups, by the group of the children. Children that end together share a
    /// completion.
    completions: Mutex<BTreeMap<u64, Arc<SharedCompletion>>>,
}

#[derive(Debug, Default)]
struct SharedCompletion {
    /// The number of children whose markers were written.
    marked: AtomicU64,
    /// The number of children whose markers were written before the last successful completion began.
    covered: tokio::sync::Mutex<u64>,
}

impl KnownBatch {
    /// Completes the groups above `group`, in which a child has just been marked. A completion for another
    /// child that begins after this call counts for both, because one listing of the group shows both
    /// markers. `complete` gets and returns the number of the batch's children, if that is known.
    pub(super) async fn complete_ancestors<F>(
        &self,
        group: u64,
        complete: impl FnOnce(Option<u64>) -> F,
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<Option<u64>, Error>>,
    {
        let shared = Arc::clone(lock(&self.completions).entry(group).or_default());
        let own = shared.marked.fetch_add(1, Ordering::SeqCst) + 1;
        let completed = async {
            let mut covered = shared.covered.lock().await;
            if *covered >= own {
                return Ok(());
            }
            let marked = shared.marked.load(Ordering::SeqCst);
            if let Some(children) = complete(self.children.get().copied()).await? {
                // Fails if another completion has set the same number.
                let _ = self.children.set(children);
            }
            *covered = marked;
            Ok(())
        };
        let completed = completed.await;
        let mut completions = lock(&self.completions);
        // Only the map and this call refer to the completion.
        if Arc::strong_count(&shared) == 2 {
            completions.remove(&group);
        }
        completed
    }
}
