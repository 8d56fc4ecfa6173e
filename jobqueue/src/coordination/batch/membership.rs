//! The worker's hook for the children and continuations of batches.

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde_json::value::RawValue;

use super::claim::Turn;
use super::claimed::{ClaimedChild, ClaimedContinuation};
use super::known::KnownBatches;
use super::ledger::{Ledger, Marker};
use super::names::{BatchId, CONTINUATION, COPY, OF_TOKEN, TOKEN};
use crate::delivery::{AdmissionContext, Disposition, Hook, HookAnswer, HookContext, JobEnd, Rejection};
use crate::envelope::headers::batch::is_of_batch;
use crate::error::Error;
use crate::job::JobInfo;
use crate::storage::Storage;

/// Takes part in every delivery whose headers name a batch, and in no other delivery.
#[derive(Debug, Default)]
pub(crate) struct Membership {
    batches: KnownBatches,
}

/// Removes the tokens of batches from headers that are shown, because a token makes any message pass for the
/// same child.
pub fn remove_tokens(headers: &mut BTreeMap<String, String>) {
    headers.retain(|name, _| name != TOKEN && name != OF_TOKEN);
}

/// Removes the framework's attributes of batches.
pub fn remove_own<V>(attributes: &mut BTreeMap<String, V>) {
    attributes.retain(|name, _| !super::names::BATCH_HEADERS.contains(&name.as_str()));
}

/// Returns the place of a child, under which its turn is claimed.
fn place_of(index: u64) -> String {
    format!("{index:010}")
}

struct ChildPlace<'a> {
    ledger: Ledger<'a>,
    index: u64,
    waits: bool,
    /// True if another message of the child may have been put before this message; `None` if each message of
    /// the child makes its claim immediately.
    is_copy: Option<bool>,
}

impl Membership {
    /// Returns the batch `id` if it made the job, which `proves` decides by the batch's secret.
    async fn batch<'a>(
        &self,
        storage: &'a Storage,
        id: &str,
        proves: impl Fn(&str) -> bool + Send,
    ) -> Result<Option<Ledger<'a>>, Error> {
        let Ok(id) = BatchId::new(id) else { return Ok(None) };
        let ledger = Ledger::new(storage, id);
        let known = self.batches.get(ledger.id.as_str()).filter(|known| proves(&known.secret));
        if let Some(known) = known {
            return Ok(Some(ledger.knowing(known)));
        }
        let Some(read) = ledger.secret().await? else { return Ok(None) };
        let is_member = proves(&read);
        let known = self.batches.insert(ledger.id.as_str(), read);
        Ok(is_member.then(|| ledger.knowing(known)))
    }

    /// Returns the place of a child, if the job is a child.
    async fn child<'a>(&self, hook_context: HookContext<'a>) -> Result<Option<ChildPlace<'a>>, Error> {
        let JobInfo { headers, source, id, .. } = hook_context.job;
        let Some(claimed) = ClaimedChild::of_headers(headers) else { return Ok(None) };
        let proves = |secret: &str| claimed.is_proven(secret, source, id);
        let ledger = self.batch(hook_context.storage, &claimed.batch, proves).await?;
        let (index, waits) = (claimed.index, claimed.waits);
        let is_copy = is_copy(hook_context.job);
        Ok(ledger.map(|ledger| ChildPlace { ledger, index, waits, is_copy }))
    }

    /// Returns the batch that the job continues, if it is a continuation.
    async fn continued<'a>(&self, hook_context: HookContext<'a>) -> Result<Option<Ledger<'a>>, Error> {
        let JobInfo { headers, source, id, .. } = hook_context.job;
        let Some(claimed) = ClaimedContinuation::of_headers(headers) else { return Ok(None) };
        let proves = |secret: &str| claimed.is_proven(secret, source, id);
        self.batch(hook_context.storage, &claimed.batch, proves).await
    }
}

fn is_copy(job: &JobInfo) -> Option<bool> {
    job.headers.get(COPY).map(|copy| copy != "0")
}

#[async_trait]
impl Hook for Membership {
    fn applies_to(&self, job: &JobInfo) -> bool {
        is_of_batch(&job.headers)
    }

    fn decides_first(&self, job: &JobInfo) -> bool {
        is_copy(job) == Some(true)
    }

    async fn admit(
        &self,
        hook_context: HookContext<'_>,
        _: AdmissionContext<'_>,
    ) -> Result<HookAnswer, Error> {
        if let Some(ledger) = self.continued(hook_context).await? {
            // A continuation is a member of the outer batch in place of the job that sent its batch; it takes
            // no turn there.
            return Ok(match ledger.turn_of(CONTINUATION, hook_context, false).await? {
                Turn::First => HookAnswer::Run,
                _ if ledger.has_continued().await? => HookAnswer::Settle(Disposition::Discard),
                Turn::Again => HookAnswer::Run,
                Turn::Wait(wait) => HookAnswer::release(wait),
            });
        }
        let Some(ChildPlace { ledger, index, is_copy, .. }) = self.child(hook_context).await? else {
            return Ok(HookAnswer::Run);
        };
        let is_first = hook_context.leased_job.fence() == 1 && hook_context.job.attempt == 1;
        if is_first && is_copy == Some(false) {
            // A delivery that the storage did not count may have ended the child.
            if !hook_context.leased_job.is_certainly_first() && ledger.is_over(index).await? {
                return Ok(HookAnswer::Settle(Disposition::Discard));
            }
            ledger.keep_turn(&place_of(index), hook_context, false)?;
            return Ok(HookAnswer::Run);
        }
        let turn = ledger.turn_of(&place_of(index), hook_context, is_copy == Some(true)).await?;
        if turn == Turn::First && is_copy.is_none() {
            return Ok(HookAnswer::Run);
        }
        // The message is a copy of a child whose job is over, or the end of the job was recorded without its
        // consequences.
        if ledger.is_over(index).await? {
            return Ok(HookAnswer::Settle(Disposition::Discard));
        }
        Ok(match turn {
            Turn::Wait(wait) => HookAnswer::release(wait),
            Turn::First | Turn::Again => HookAnswer::Run,
        })
    }

    async fn ending(&self, hook_context: HookContext<'_>, end: JobEnd<'_>) -> Result<(), Error> {
        match end {
            JobEnd::Completed { result, handed_over } => {
                self.completing(hook_context, result, handed_over).await
            }
            JobEnd::Discarded => self.discarding(hook_context).await,
            JobEnd::Failed(rejection) => self.failing(hook_context, rejection).await,
        }
    }

    async fn is_done_elsewhere(&self, hook_context: HookContext<'_>) -> Result<bool, Error> {
        if let Some(ledger) = self.continued(hook_context).await? {
            return ledger.has_continued().await;
        }
        match self.child(hook_context).await? {
            Some(ChildPlace { ledger, index, .. }) => ledger.is_over(index).await,
            None => Ok(false),
        }
    }
}

impl Membership {
    async fn completing(
        &self,
        hook_context: HookContext<'_>,
        result: Option<&RawValue>,
        handed_over: bool,
    ) -> Result<(), Error> {
        let continued = self.continued(hook_context).await?;
        if let Some(child) = self.child(hook_context).await? {
            // An earlier delivery, even before a redrive or of another message of the child, may have handed the end
            // over.
            let has_past = !hook_context.leased_job.is_certainly_first()
                || hook_context.job.attempt > 1
                || child.is_copy != Some(false);
            let mut chain = if handed_over || has_past || continued.is_some() {
                child.ledger.handovers(child.index).await?
            } else {
                Vec::new()
            };
            let own = continued.as_ref().map(|ledger| ledger.id.as_str());
            let own = own.and_then(|own| chain.iter().position(|inner| inner == own));
            // The place in the chain of the batch that this job announces: behind the batch that it
            // continues.
            let to = own.map_or(0, |own| own + 1);
            // Only the last place is checked: the batch of another job of the chain may be sealed later.
            if !handed_over && to + 1 == chain.len() {
                child.ledger.leave_out_unsealed(child.index, &mut chain).await?;
            }
            if to < chain.len() {
                child.ledger.has_returned(child.index, to, &chain).await?;
            } else {
                let marker = Marker::Done(result.map(ToOwned::to_owned));
                child.ledger.end_with(child.index, &chain, &marker).await?;
            }
        }
        if let Some(ledger) = continued {
            ledger.note_continued().await?;
        }
        Ok(())
    }

    async fn discarding(&self, hook_context: HookContext<'_>) -> Result<(), Error> {
        // The job that sent the continuation's batch has ended before.
        if self.continued(hook_context).await?.is_some() {
            return Ok(());
        }
        match self.child(hook_context).await? {
            Some(ChildPlace { ledger, index, .. }) => ledger.end_elsewhere(index).await,
            None => Ok(()),
        }
    }

    async fn failing(&self, hook_context: HookContext<'_>, rejection: &Rejection) -> Result<(), Error> {
        let (continued, child) = (self.continued(hook_context).await?, self.child(hook_context).await?);
        if let Some(ChildPlace { ledger, index, waits: false, .. }) = &child
            // A copy without the turn cannot fail the child.
            && (continued.is_some() || ledger.may_end(&place_of(*index), hook_context).await?)
        {
            let Rejection { reason, detail, .. } = rejection;
            let failed = Marker::Failed { reason: reason.to_string(), detail: detail.clone() };
            ledger.end_child(*index, &failed).await?;
        }
        // A redrive would send the job as another message, which needs a free turn.
        match (continued, child) {
            (Some(ledger), _) => ledger.end_turn(CONTINUATION, hook_context).await,
            (None, Some(ChildPlace { ledger, index, .. })) => {
                ledger.end_turn(&place_of(index), hook_context).await
            }
            (None, None) => Ok(()),
        }
    }
}
