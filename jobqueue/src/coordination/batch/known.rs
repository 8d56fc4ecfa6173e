//! The memory of a worker of the batches whose children it runs: facts that do not change, because the id of a batch is not used again.

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

    /// Keeps a batch whose secret was read. Children that begin together share it.
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
    /// The completions of the groups above groups of children, which the children that end at the same time share.
    completions: Mutex<BTreeMap<u64, Arc<SharedCompletion>>>,
}

#[derive(Debug, Default)]
struct SharedCompletion {
    /// The number of children whose markers were written.
    marked: AtomicU64,
    /// The number of these before the last completion that succeeded.
    covered: tokio::sync::Mutex<u64>,
}

impl KnownBatch {
    /// Completes the groups above a group one of whose children has just been marked. A completion of another child that begins after this
    /// call counts for both: one listing of the group shows all their markers. `complete` gets and returns the number of children, if it is
    /// known.
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
                // Another completion may have set the same number.
                let _ = self.children.set(children);
            }
            *covered = marked;
            Ok(())
        };
        let completed = completed.await;
        let mut completions = lock(&self.completions);
        // Only the map and this call have it.
        if Arc::strong_count(&shared) == 2 {
            completions.remove(&group);
        }
        completed
    }
}
