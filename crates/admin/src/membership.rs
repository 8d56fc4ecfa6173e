//! The batches of jobs. Proves each claim to be a child of a batch, because the headers of a child can be
//! copied.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use jobqueue::__internals::{ClaimedChild, batch_secret};
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

    /// Returns the number of batch children that a pass has met, each counted once; `None` if a batch cannot
    /// be read, or not in time.
    pub(super) async fn count(
        mut self,
        storage: &Storage,
        children: &[WaitedFor],
        stop: &CancellationToken,
    ) -> Option<u64> {
        let batches = children.iter().map(|child| child.claimed.batch.clone()).collect();
        let deadline = async {
            let _ = timeout(PASS_PROOF_TIMEOUT, stop.cancelled()).await;
            sleep(PROOF_TIMEOUT).await;
        };
        self.read(storage, batches, deadline).await;
        let is_proven = |WaitedFor { claimed, source, id }: &&WaitedFor| {
            let secret = self.secrets.get(&claimed.batch).and_then(Option::as_deref);
            secret.is_some_and(|secret| claimed.is_proven(secret, source, id))
        };
        let proven = children.iter().filter(is_proven);
        let places: BTreeSet<_> = proven.map(|child| (&child.claimed.batch, child.claimed.index)).collect();
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

/// A dead letter whose job claims to be a child that its batch waits for.
pub(super) struct WaitedFor {
    claimed: ClaimedChild,
    source: String,
    id: String,
}

impl WaitedFor {
    pub(super) fn of(letter: &DeadLetter) -> Option<Self> {
        let Ok(Parsed::Event(event)) = parse(letter.raw_text()) else { return None };
        let claimed = ClaimedChild::of_headers(&event.headers()).filter(|claimed| claimed.waits)?;
        Some(Self { claimed, source: letter.source.clone(), id: letter.id.clone() })
    }
}

fn swept(batch: &str) -> Error {
    let text = format!(
        "there is no batch `{batch}`, so that nothing proves which jobs are its children; if it was swept, they still run: select them by \
         kind or key"
    );
    Error::new(ErrorKind::Conflict, text)
}
