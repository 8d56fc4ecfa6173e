//! What the worker does for children and continuations of batches.

use async_trait::async_trait;
use serde_json::value::RawValue;

use super::ledger::{Ledger, Marker};
use super::names::{BATCH, BatchId, INDEX, MAX_CHILDREN, OF, ON_DEAD};
use crate::error::Error;
use crate::job::JobInfo;
use crate::worker::{Decision, Hook, HookContext};

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
fn child(hook_context: HookContext<'_>) -> Option<Child<'_>> {
    let headers = &hook_context.job.headers;
    let id = BatchId::new(headers.get(BATCH)?).ok()?;
    let index = headers.get(INDEX)?.parse().ok().filter(|index| *index < MAX_CHILDREN)?;
    let waits = headers.get(ON_DEAD).is_none_or(|policy| policy != "continue");
    Some(Child { ledger: Ledger { storage: hook_context.storage, id }, index, waits })
}

/// The batch this job continues.
fn continued(hook_context: HookContext<'_>) -> Option<Ledger<'_>> {
    let id = BatchId::new(hook_context.job.headers.get(OF)?).ok()?;
    Some(Ledger { storage: hook_context.storage, id })
}

#[async_trait]
impl Hook for Membership {
    fn applies_to(&self, job: &JobInfo) -> bool {
        job.headers.contains_key(BATCH) || job.headers.contains_key(OF)
    }

    async fn admit(&self, hook_context: HookContext<'_>) -> Result<Decision, Error> {
        if let Some(ledger) = continued(hook_context) {
            // Its membership in a batch above is that of the job it continues, and is not elected anew.
            let elected = ledger.elect(THEN, hook_context.message).await?;
            return Ok(if elected { Decision::Run } else { Decision::Duplicate });
        }
        let Some(Child { ledger, index, .. }) = child(hook_context) else { return Ok(Decision::Run) };
        if !ledger.elect(&claim(index), hook_context.message).await? {
            return Ok(Decision::Duplicate);
        }
        // A second delivery of a child that had ended, but whose end perhaps led no further.
        let again = hook_context.job.dequeue_count > 1;
        let marker = ledger.id.marker(0, index)?;
        if again && let Some(Marker::Done(_)) = ledger.read(&marker).await? {
            return Ok(Decision::Finished);
        }
        Ok(Decision::Run)
    }

    async fn completing(
        &self,
        hook_context: HookContext<'_>,
        result: Option<&RawValue>,
        handed_over: bool,
    ) -> Result<(), Error> {
        if let Some(Child { ledger, index, .. }) = child(hook_context)
            && !handed_over
        {
            ledger.end_child(index, &Marker::Done(result.map(ToOwned::to_owned))).await?;
        }
        if let Some(ledger) = continued(hook_context) {
            ledger.create(&ledger.id.blob("done")?, &true).await?;
        }
        Ok(())
    }

    async fn dead_lettering(
        &self,
        hook_context: HookContext<'_>,
        reason: &str,
        detail: &str,
    ) -> Result<(), Error> {
        // Its membership in a batch above is that of the job it continues, and claims nothing of its own.
        let (own, who) = match (continued(hook_context), child(hook_context)) {
            (Some(ledger), _) => (ledger, THEN.to_owned()),
            (None, Some(Child { ledger, index, .. })) => (ledger, claim(index)),
            (None, None) => return Ok(()),
        };
        if !own.elect(&who, hook_context.message).await? {
            // A copy: another message of the job counts, and has not failed.
            return Ok(());
        }
        if let Some(Child { ledger, index, waits: false }) = child(hook_context) {
            let failed = Marker::Failed { reason: reason.to_owned(), detail: detail.to_owned() };
            ledger.end_child(index, &failed).await?;
        }
        // It may be redriven, and then is another message.
        own.step_down(&who).await?;
        Ok(())
    }
}
