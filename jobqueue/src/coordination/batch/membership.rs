//! What the worker does for children and continuations of batches.

use async_trait::async_trait;
use serde_json::value::RawValue;

use super::ledger::{Ledger, Marker};
use super::names::{BATCH, BatchId, INDEX, MAX_CHILDREN, OF, ON_DEAD};
use crate::vocabulary::error::Error;
use crate::vocabulary::job::JobInfo;
use crate::worker::{Admission, Hook, Visit};

/// Takes part in every delivery whose headers name a batch, and in no other.
#[derive(Debug)]
pub(crate) struct Membership;

/// The claim of the continuation.
const THEN: &str = "then";

/// The claim of a child.
fn claim(index: u64) -> String {
    format!("{index:010}")
}

struct Child<'a> {
    ledger: Ledger<'a>,
    index: u64,
    waits: bool,
}

/// The batch this job is a child of. Headers that nobody here wrote are not believed, and make no batch.
fn child(visit: Visit<'_>) -> Option<Child<'_>> {
    let headers = &visit.job.headers;
    let id = BatchId::new(headers.get(BATCH)?).ok()?;
    let index = headers.get(INDEX)?.parse().ok().filter(|index| *index < MAX_CHILDREN)?;
    let waits = headers.get(ON_DEAD).is_none_or(|policy| policy != "continue");
    Some(Child { ledger: Ledger { storage: visit.storage, id }, index, waits })
}

/// The batch this job continues.
fn continued(visit: Visit<'_>) -> Option<Ledger<'_>> {
    let id = BatchId::new(visit.job.headers.get(OF)?).ok()?;
    Some(Ledger { storage: visit.storage, id })
}

#[async_trait]
impl Hook for Membership {
    fn concerns(&self, job: &JobInfo) -> bool {
        job.headers.contains_key(BATCH) || job.headers.contains_key(OF)
    }

    async fn admit(&self, visit: Visit<'_>) -> Result<Admission, Error> {
        if let Some(ledger) = continued(visit) {
            // Its membership in a batch above is that of the job it continues, and is not elected anew.
            let elected = ledger.elect(THEN, visit.message).await?;
            return Ok(if elected { Admission::Run } else { Admission::Duplicate });
        }
        let Some(Child { ledger, index, .. }) = child(visit) else { return Ok(Admission::Run) };
        if !ledger.elect(&claim(index), visit.message).await? {
            return Ok(Admission::Duplicate);
        }
        // A second delivery of a child that had ended, but whose end perhaps led no further.
        let again = visit.job.dequeue_count > 1;
        let marker = ledger.id.marker(0, index)?;
        if again && let Some(Marker::Done(_)) = ledger.read(&marker).await? {
            return Ok(Admission::Finished);
        }
        Ok(Admission::Run)
    }

    async fn completing(
        &self,
        visit: Visit<'_>,
        result: Option<&RawValue>,
        handed_over: bool,
    ) -> Result<(), Error> {
        if let Some(Child { ledger, index, .. }) = child(visit)
            && !handed_over
        {
            ledger.end_child(index, &Marker::Done(result.map(ToOwned::to_owned))).await?;
        }
        if let Some(ledger) = continued(visit) {
            ledger.create(&ledger.id.blob("done")?, &true).await?;
        }
        Ok(())
    }

    async fn burying(&self, visit: Visit<'_>, reason: &str, detail: &str) -> Result<(), Error> {
        // Its membership in a batch above is that of the job it continues, and claims nothing of its own.
        let (own, who) = match (continued(visit), child(visit)) {
            (Some(ledger), _) => (ledger, THEN.to_owned()),
            (None, Some(Child { ledger, index, .. })) => (ledger, claim(index)),
            (None, None) => return Ok(()),
        };
        if !own.elect(&who, visit.message).await? {
            // A copy: another message of the job counts, and has not failed.
            return Ok(());
        }
        if let Some(Child { ledger, index, waits: false }) = child(visit) {
            let failed = Marker::Failed { reason: reason.to_owned(), detail: detail.to_owned() };
            ledger.end_child(index, &failed).await?;
        }
        // It may be redriven, and then is another message.
        own.step_down(&who).await?;
        Ok(())
    }
}
