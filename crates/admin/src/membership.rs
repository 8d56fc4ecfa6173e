//! The batches of jobs, as far as they are proven: the headers of a child can be copied.

use std::collections::BTreeMap;

use jobqueue::__internals::batch_secret;
use jobqueue::{Error, Storage};

use super::{RawBatch, RawJob};

/// The secrets of the batches that a look has met. Each is read once.
#[derive(Default)]
pub(super) struct Memberships(BTreeMap<String, Option<String>>);

impl Memberships {
    /// Sets the batches of jobs that claim to be children, if the claim is proven: those of one batch, or of any. A batch that cannot be
    /// read proves nothing.
    ///
    /// # Errors
    /// The one batch cannot be read.
    pub(super) async fn prove(
        &mut self,
        storage: &Storage,
        jobs: &mut [RawJob],
        of: Option<&str>,
    ) -> Result<(), Error> {
        for job in jobs {
            let Some(claimed) = job.claimed.take().filter(|claimed| of.is_none_or(|of| of == claimed.batch))
            else {
                continue;
            };
            if !self.0.contains_key(&claimed.batch) {
                let secret = match batch_secret(storage, &claimed.batch).await {
                    Err(error) if of.is_some() => return Err(error),
                    secret => secret.ok().flatten(),
                };
                self.0.insert(claimed.batch.clone(), secret);
            }
            let secret = self.0.get(&claimed.batch).and_then(Option::as_deref);
            let is_child = secret.is_some_and(|secret| claimed.is_proven(secret, &job.source, &job.id));
            job.batch = is_child.then_some(RawBatch { id: claimed.batch, index: Some(claimed.index) });
        }
        Ok(())
    }
}
