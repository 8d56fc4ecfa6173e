//! A child that ends with another batch, because its handler has sent that batch. The continuation of that
//! batch may send a further batch.
//!
//! ```text
//! child ──► batch X ──► continuation of X ──► batch Y ──► continuation of Y
//!   0                          1                                 end
//! ```
//!
//! Each batch is recorded before it is sealed, so that every later attempt finds it. The child is done when
//! the last continuation is done and all handlers before it have returned: a handler that fails after its
//! batch is sealed is retried, and if it fails for good, the child fails with it.

use super::claimed::ClaimedChild;
use super::ledger::{Ledger, Marker, Plan, damaged};
use super::names::{BatchId, INNER};
use crate::envelope::{Parsed, parse};
use crate::error::{Error, ErrorKind};
use crate::json_blob::{Edit, JsonBlob, Known};
use crate::settings::Metadata;
use crate::storage::BlobName;

impl Plan {
    /// Returns whether the continuation ends child `index` of the batch with this secret. A continuation ends
    /// at most one child: the child whose job has sealed the batch.
    pub(super) fn ends_child(&self, batch: &BatchId, index: u64, secret: &str) -> bool {
        let Ok(Parsed::Event(event)) = parse(&self.text) else { return false };
        ClaimedChild::of_headers(&event.headers()).is_some_and(|child| {
            child.batch == batch.as_str()
                && child.index == index
                && child.is_proven(secret, &event.source, &event.id)
        })
    }
}

impl Ledger<'_> {
    /// Records that child `index` ends with the continuation of the batch `inner`. `from` is the batch whose
    /// continuation hands the end over, if the sending job is a continuation.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if the child already ends with another batch: a job has one end.
    pub(super) async fn hand_over(
        &self,
        index: u64,
        inner: &BatchId,
        from: Option<&str>,
    ) -> Result<(), Error> {
        let add = |chain: Option<Vec<String>>| match chain {
            None => Edit::Write(vec![inner.as_str().to_owned()], Ok(())),
            Some(chain) if chain.iter().any(|known| known == inner.as_str()) => Edit::Keep(Ok(())),
            Some(chain) if chain.last().map(String::as_str) != from => {
                Edit::Keep(Err(other_end(&chain, inner)))
            }
            Some(mut chain) => {
                chain.push(inner.as_str().to_owned());
                Edit::Write(chain, Ok(()))
            }
        };
        self.chain(index)?.change(Known::Absent, add).await.map_err(damaged)?.result
    }

    /// Removes the record that child `index` ends with the batch `inner`. Returns the error for the job that
    /// wrote the record: the continuation of `inner` does not end the child.
    pub(super) async fn retract_handover(&self, index: u64, inner: &BatchId) -> Result<Error, Error> {
        let remove = |chain: Option<Vec<String>>| match chain {
            Some(mut chain) if chain.last().is_some_and(|last| last == inner.as_str()) => {
                chain.pop();
                Edit::Write(chain, ())
            }
            _ => Edit::Keep(()),
        };
        self.chain(index)?.change(Known::Nothing, remove).await.map_err(damaged)?;
        let text = format!(
            "another job has sealed the batch `{}`, whose continuation does not end this job; give the batch an id that is made from this job's message",
            inner.as_str()
        );
        Ok(Error::new(ErrorKind::Conflict, text))
    }

    /// Returns the batches through which child `index` ends, in their order; empty if the child ends by
    /// itself.
    pub(super) async fn handovers(&self, index: u64) -> Result<Vec<String>, Error> {
        let found = self.read_version(&self.chain(index)?).await?;
        Ok(found.map(|found| found.value).unwrap_or_default())
    }

    /// Removes the last batch from `chain` if it was recorded but not sealed, or was sealed by another job:
    /// the process ended between the two steps, and this attempt of the recording job has not sent the batch
    /// again. The continuation of such a batch never ends the child.
    pub(super) async fn leave_out_unsealed(&self, index: u64, chain: &mut Vec<String>) -> Result<(), Error> {
        // The last batch has ended, and may have been swept.
        if self.read::<Marker>(&self.continued(index)?).await?.is_some() {
            return Ok(());
        }
        let Some(last) = chain.last() else { return Ok(()) };
        let plan = Ledger::new(self.storage, BatchId::new(last)?).plan().await?;
        let secret = self.secret().await?.unwrap_or_default();
        if !plan.is_some_and(|plan| plan.ends_child(&self.id, index, &secret)) {
            crate::log::warn!(batch = %last, "the job has not sealed the batch, and has ended without it");
            chain.pop();
            if !chain.is_empty() {
                // A handler of the chain that returns later reads the whole record, and must find this
                // handler returned.
                self.create(&self.returned(index, chain.len())?, &true).await?;
            }
        }
        Ok(())
    }

    /// Returns whether the job of a child is over, so that none of its messages runs: the job has succeeded,
    /// or its handler has handed the end over and returned.
    pub(super) async fn is_over(&self, index: u64) -> Result<bool, Error> {
        let is_done = matches!(self.read(&self.id.marker(0, index)?).await?, Some(Marker::Done(_)));
        Ok(is_done || self.read::<bool>(&self.returned(index, 0)?).await?.is_some())
    }

    /// Records the return of the handler that handed the end of child `index` over to batch number `to` of
    /// `chain`. Ends the child if all handlers have returned.
    pub(super) async fn has_returned(&self, index: u64, to: usize, chain: &[String]) -> Result<(), Error> {
        self.create(&self.returned(index, to)?, &true).await?;
        self.end_if_all_returned(index, chain).await
    }

    /// Ends child `index` if the last continuation of `chain` returned before a handler of the chain, and all
    /// handlers have returned since.
    async fn end_if_all_returned(&self, index: u64, chain: &[String]) -> Result<(), Error> {
        match self.read::<Marker>(&self.continued(index)?).await? {
            Some(marker) if self.have_all_returned(index, chain).await? => {
                self.end_child(index, &marker).await
            }
            _ => Ok(()),
        }
    }

    /// Ends child `index` with the last continuation of `chain`. If a handler before it has not returned yet,
    /// that handler ends the child.
    pub(super) async fn end_with(&self, index: u64, chain: &[String], marker: &Marker) -> Result<(), Error> {
        if !self.have_all_returned(index, chain).await? {
            self.create(&self.continued(index)?, marker).await?;
            // Continuation and handler each write before they read, so that at least one of them sees both
            // records.
            if !self.have_all_returned(index, chain).await? {
                return Ok(());
            }
        }
        self.end_child(index, marker).await
    }

    /// Ends child `index`, whose own message does not run: another job does its work, or its job is over. A
    /// child that has handed over to a batch ends with that batch.
    pub(super) async fn end_elsewhere(&self, index: u64) -> Result<(), Error> {
        let ended = self.read::<Marker>(&self.id.marker(0, index)?).await?;
        if !matches!(ended, Some(Marker::Done(_))) {
            let chain = self.handovers(index).await?;
            if chain.is_empty() {
                return self.end_child(index, &Marker::Done(None)).await;
            }
            // The process may have died between the two steps of `has_returned`.
            self.end_if_all_returned(index, &chain).await?;
        }
        match ended {
            Some(_) => self.complete_ancestors(index).await,
            None => Ok(()),
        }
    }

    async fn have_all_returned(&self, index: u64, chain: &[String]) -> Result<bool, Error> {
        for to in 0..chain.len() {
            if self.read::<bool>(&self.returned(index, to)?).await?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the record of the batches through which a child ends.
    fn chain(&self, index: u64) -> Result<JsonBlob<Vec<String>>, Error> {
        // The metadata repeats the last batch, so that a listing shows the tree of batches.
        let last = |chain: &Vec<String>| match chain.last() {
            Some(last) => Metadata::new().with(INNER, last),
            None => Metadata::new(),
        };
        Ok(self.document(&self.id.blob(&format!("handover/{index:010}"))?).with_metadata(last))
    }

    fn returned(&self, index: u64, to: usize) -> Result<BlobName, Error> {
        self.id.blob(&format!("returned/{index:010}/{to}"))
    }

    fn continued(&self, index: u64) -> Result<BlobName, Error> {
        self.id.blob(&format!("continued/{index:010}"))
    }
}

/// Returns the error for a job that waits for the last batch of `chain`: a job has one end.
fn other_end(chain: &[String], inner: &BatchId) -> Error {
    let text = format!(
        "this job already waits for the batch `{}` and cannot also wait for `{}`; send the children of both in one batch",
        chain.last().map_or("", String::as_str),
        inner.as_str()
    );
    Error::new(ErrorKind::Conflict, text)
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Plan;
    use super::*;
    use crate::storage::Storage;

    /// A continuation has announced a batch and returned without it, before the handler that has sent its own
    /// batch.
    #[tokio::test]
    async fn batch_that_is_left_out_holds_up_no_handler_that_returns_later() {
        let storage = Storage::memory();
        let outer = Ledger::new(&storage, BatchId::new("outer").unwrap());
        let [sent, announced] = ["sent", "announced"].map(|id| BatchId::new(id).unwrap());
        let plan = Plan { children: 1, queue: "joins".to_owned(), text: String::new(), job: None };
        Ledger::new(&storage, sent.clone()).seal(&plan).await.unwrap();
        outer.hand_over(0, &sent, None).await.unwrap();
        outer.hand_over(0, &announced, Some("sent")).await.unwrap();
        let mut chain = outer.handovers(0).await.unwrap();
        outer.leave_out_unsealed(0, &mut chain).await.unwrap();
        outer.end_with(0, &chain, &Marker::Done(None)).await.unwrap();
        assert!(!outer.is_over(0).await.unwrap());
        // The process dies between the two steps of `has_returned`, and the message is delivered again.
        outer.create(&outer.returned(0, 0).unwrap(), &true).await.unwrap();
        assert!(outer.is_over(0).await.unwrap());
        outer.end_elsewhere(0).await.unwrap();
        assert!(outer.read::<Marker>(&outer.id.marker(0, 0).unwrap()).await.unwrap().is_some());
    }

    /// The process died between the record and the check of the plan, and the next attempt of its job does
    /// not send the batch.
    #[tokio::test]
    async fn batch_that_another_job_has_sealed_is_left_out() {
        let storage = Storage::memory();
        let outer = Ledger::new(&storage, BatchId::new("outer").unwrap());
        let inner = BatchId::new("inner").unwrap();
        let plan = Plan { children: 1, queue: "joins".to_owned(), text: String::new(), job: None };
        Ledger::new(&storage, inner.clone()).seal(&plan).await.unwrap();
        outer.hand_over(0, &inner, None).await.unwrap();
        let mut chain = outer.handovers(0).await.unwrap();
        assert_eq!(chain, ["inner"]);
        outer.leave_out_unsealed(0, &mut chain).await.unwrap();
        assert!(chain.is_empty());
        assert!(!outer.is_over(0).await.unwrap(), "the job has no end yet");
    }
}
