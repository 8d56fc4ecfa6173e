//! A child that ends with another batch. This is recorded before that batch is sealed, so that every later attempt
//! knows it.

use super::ledger::Ledger;
use super::names::{BatchId, INNER};
use crate::error::{Error, ErrorKind};
use crate::settings::Metadata;
use crate::storage::PutBlob;

impl Ledger<'_> {
    /// Records that child `index` ends with the continuation of the batch `inner`. `from` is set if the continuation
    /// of that batch passes the end on.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if the child already ends with another batch: a job has one end.
    pub(super) async fn hand_over(
        &self,
        index: u64,
        inner: &BatchId,
        from: Option<&str>,
    ) -> Result<(), Error> {
        let blob = self.id.blob(&format!("handover/{index:010}"))?;
        // In the metadata as well, so that a listing shows the tree of batches.
        let told = |options: PutBlob| options.with_metadata(Metadata::new().with(INNER, inner.as_str()));
        if self.write(&blob, &inner.as_str(), told(PutBlob::if_absent())).await? {
            return Ok(());
        }
        match self.handed_over_to(index).await? {
            Some(other) if Some(other.as_str()) == from => {
                self.write(&blob, &inner.as_str(), told(PutBlob::new())).await.map(drop)
            }
            Some(other) if other != inner.as_str() => {
                let text = format!(
                    "this job already waits for the batch `{other}` and cannot also wait for `{}`; send the children of both in one batch",
                    inner.as_str()
                );
                Err(Error::new(ErrorKind::Conflict, text))
            }
            _ => Ok(()),
        }
    }

    /// Returns the batch with whose continuation child `index` ends.
    pub(super) async fn handed_over_to(&self, index: u64) -> Result<Option<String>, Error> {
        self.read(&self.id.blob(&format!("handover/{index:010}"))?).await
    }
}
