//! The batches of jobs. Proves each claim to be a child of a batch, because the headers of a child can be
//! copied.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use jobqueue::__internals::{ClaimedChild, ClaimedContinuation, batch_secret};
use jobqueue::dead_letters::DeadLetter;
use jobqueue::{Error, ErrorKind, Storage};
use jobqueue_message::envelope::{Parsed, parse};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{RawBatch, RawJob};

/// The number of batches that are read concurrently.
const CONCURRENT_READS: usize = 8;
/// The time for reading all batches that a search names: the search must end even if the blob storage is
/// unavailable.
const PROOF_TIMEOUT: Duration = Duration::from_secs(2);
/// The time for reading all batches that a pass over the dead letters names. The pass itself takes minutes if
/// it names so many.
const PASS_PROOF_TIMEOUT: Duration = Duration::from_secs(60);

/// The secrets of the batches that a search has met, each read once; `None` for a batch that does not exist.
#[derive(Default)]
pub(super) struct Memberships {
    secrets: BTreeMap<String, Option<String>>,
    /// True if a batch could not be read: the search reads no further batches.
    has_failed: bool,
}

impl Memberships {
    /// Sets the batches of the jobs that claim to be children, if the claim is proven: claims to the batch
    /// `of`, or to any. A claim to another batch that cannot be read now stays a claim, and the job is shown
    /// without a batch.
    ///
    /// # Errors
    /// The batch `of` cannot be read, or does not exist although a job claims to be its child: nothing proves
    /// the claim.
    pub(super) async fn prove(
        &mut self,
        storage: &Storage,
        jobs: &mut [RawJob],
        of: Option<&str>,
    ) -> Result<(), Error> {
        match of {
            Some(of) if self.secrets.contains_key(of) => {}
            Some(of) if jobs.iter().any(|job| job.claims(of)) => {
                let secret = batch_secret(storage, of).await?.ok_or_else(|| swept(of))?;
                self.secrets.insert(of.to_owned(), Some(secret));
            }
            Some(_) => {}
            None => {
                let named = jobs.iter().filter_map(|job| job.claimed.as_ref());
                self.read(
                    storage,
                    named.map(|claimed| claimed.batch.clone()).collect(),
                    sleep(PROOF_TIMEOUT),
                )
                .await;
            }
        }
        for job in jobs {
            if let Some(claimed) = job.claimed.take_if(|claimed| self.secrets.contains_key(&claimed.batch)) {
                let secret = self.secrets.get(&claimed.batch).and_then(Option::as_deref);
                let is_child = secret.is_some_and(|secret| claimed.is_proven(secret, &job.source, &job.id));
                job.batch = is_child.then_some(RawBatch { id: claimed.batch, index: Some(claimed.index) });
            }
        }
        Ok(())
    }

    /// Returns the number of children and continuations that batches wait for and a pass has met, each
    /// counted once; `None` if a batch cannot be read, or not in time.
    pub(super) async fn count(
        mut self,
        storage: &Storage,
        waited_for: &[WaitedFor],
        stop: &CancellationToken,
    ) -> Option<u64> {
        let batches = waited_for.iter().flat_map(WaitedFor::batches).cloned().collect();
        let deadline = async {
            let _ = timeout(PASS_PROOF_TIMEOUT, stop.cancelled()).await;
            sleep(PROOF_TIMEOUT).await;
        };
        self.read(storage, batches, deadline).await;
        let secret = |batch: &str| self.secrets.get(batch).and_then(Option::as_deref);
        let places: BTreeSet<_> = waited_for.iter().filter_map(|job| job.place(secret)).collect();
        (!self.has_failed).then_some(places.len() as u64)
    }

    /// Reads the secrets of batches until `deadline` resolves.
    async fn read(&mut self, storage: &Storage, named: BTreeSet<String>, deadline: impl Future<Output = ()>) {
        let unread = named.into_iter().filter(|batch| !self.secrets.contains_key(batch)).collect::<Vec<_>>();
        if self.has_failed || unread.is_empty() {
            return;
        }
        let reads = unread.into_iter().map(|batch| async move {
            let secret = batch_secret(storage, &batch).await;
            (batch, secret)
        });
        let mut reads = stream::iter(reads).buffer_unordered(CONCURRENT_READS);
        let reading = async {
            while let Some((batch, secret)) = reads.next().await {
                let Ok(secret) = secret else { return false };
                self.secrets.insert(batch, secret);
            }
            true
        };
        self.has_failed = tokio::select! {
            biased;
            has_read_all = reading => !has_read_all,
            () = deadline => true,
        };
    }
}

/// A dead letter whose job claims that a batch waits for it: as a child, as its continuation, or both if the
/// batch is nested.
pub(super) struct WaitedFor {
    child: Option<ClaimedChild>,
    continuation: Option<ClaimedContinuation>,
    source: String,
    id: String,
}

impl WaitedFor {
    pub(super) fn of(letter: &DeadLetter) -> Option<Self> {
        let Ok(Parsed::Event(event)) = parse(letter.raw_text()) else { return None };
        let headers = event.headers();
        let child = ClaimedChild::of_headers(&headers).filter(|child| child.waits);
        let continuation = ClaimedContinuation::of_headers(&headers);
        let has_claim = child.is_some() || continuation.is_some();
        let (source, id) = (&letter.source, &letter.id);
        has_claim.then(|| Self { child, continuation, source: source.clone(), id: id.clone() })
    }

    fn batches(&self) -> impl Iterator<Item = &String> {
        let child = self.child.iter().map(|child| &child.batch);
        child.chain(self.continuation.iter().map(|continuation| &continuation.batch))
    }

    /// Returns a batch that waits for the job, and the number of the child, if the secret of the batch proves
    /// the claim.
    fn place<'s>(&self, secret: impl Fn(&str) -> Option<&'s str>) -> Option<(&str, Option<u64>)> {
        let (source, id) = (self.source.as_str(), self.id.as_str());
        let is_child = |child: &&ClaimedChild| {
            secret(&child.batch).is_some_and(|secret| child.is_proven(secret, source, id))
        };
        if let Some(child) = self.child.as_ref().filter(is_child) {
            return Some((child.batch.as_str(), Some(child.index)));
        }
        let continuation = self.continuation.as_ref()?;
        let is_proven = continuation.is_proven(secret(&continuation.batch)?, source, id);
        is_proven.then_some((continuation.batch.as_str(), None))
    }
}

fn swept(batch: &str) -> Error {
    let text = format!(
        "there is no batch `{batch}`, so that nothing proves which jobs are its children; if it was swept, they still run: select them by \
         kind or key"
    );
    Error::new(ErrorKind::Conflict, text)
}
