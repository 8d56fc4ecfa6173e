//! The place in a batch that a job claims to have, and the proof of the claim.

use std::collections::BTreeMap;

use super::ledger::Ledger;
use super::names::{BATCH, BatchId, CONTINUATION, INDEX, MAX_CHILDREN, OF, OF_TOKEN, ON_DEAD, TOKEN, token};
use super::{SOURCES, source};
use crate::error::Error;
use crate::storage::Storage;

/// The place of a child that a job claims. Headers can be copied from another job.
#[derive(Clone, PartialEq, Eq)]
pub struct ClaimedChild {
    /// The id of the batch.
    pub batch: String,
    /// The number of the child.
    pub index: u64,
    /// True if the batch waits while the child is a dead letter. The identity of a job does not show this.
    pub waits: bool,
    proof: Proof,
}

#[derive(Clone, PartialEq, Eq)]
enum Proof {
    /// The token in the headers of the job.
    Token(String),
    /// The source of the job, if the job has the default id of its place.
    Source,
}

impl ClaimedChild {
    /// Returns the place that the headers of a job claim.
    pub fn of_headers(headers: &BTreeMap<String, String>) -> Option<Self> {
        let index = headers.get(INDEX)?.parse().ok().filter(|index| *index < MAX_CHILDREN)?;
        Some(Self {
            batch: headers.get(BATCH)?.clone(),
            index,
            waits: headers.get(ON_DEAD).is_none_or(|policy| policy != "continue"),
            proof: Proof::Token(headers.get(TOKEN)?.clone()),
        })
    }

    /// Returns the place that the identity of a job claims, which is the default identity of a child.
    pub fn of_identity(job_source: &str, id: &str) -> Option<Self> {
        let (batch, index) = id.rsplit_once('/').filter(|_| job_source.starts_with(SOURCES))?;
        let (batch, index) = (batch.to_owned(), index.parse().ok()?);
        Some(Self { batch, index, waits: true, proof: Proof::Source })
    }

    /// Returns whether the batch with this secret made the job for this place.
    pub fn is_proven(&self, secret: &str, job_source: &str, id: &str) -> bool {
        match &self.proof {
            Proof::Token(proof) => token(secret, &self.index.to_string(), job_source, id) == *proof,
            Proof::Source => source(secret) == job_source,
        }
    }
}

jobqueue_storage::debug_fields! {
    /// Leaves out the proof, which would make another message pass for the same child.
    ClaimedChild { batch, index }
}

/// The batch that a job claims to continue. Headers can be copied from another job.
pub struct ClaimedContinuation {
    /// The id of the batch.
    pub batch: String,
    proof: String,
}

impl ClaimedContinuation {
    /// Returns the batch that the headers of a job claim.
    pub fn of_headers(headers: &BTreeMap<String, String>) -> Option<Self> {
        Some(Self { batch: headers.get(OF)?.clone(), proof: headers.get(OF_TOKEN)?.clone() })
    }

    /// Returns whether the batch with this secret made the job as its continuation.
    pub fn is_proven(&self, secret: &str, job_source: &str, id: &str) -> bool {
        token(secret, CONTINUATION, job_source, id) == self.proof
    }
}

jobqueue_storage::debug_fields! {
    /// Leaves out the proof, which would make another message pass for the same continuation.
    ClaimedContinuation { batch }
}

/// Returns the default source of the children of a batch; `None` if there is no such batch.
///
/// # Errors
/// The storage cannot be read.
pub async fn batch_source(storage: &Storage, batch: &str) -> Result<Option<String>, Error> {
    Ok(batch_secret(storage, batch).await?.as_deref().map(source))
}

/// Returns the secret of a batch, by which claims are proven; `None` if there is no such batch.
///
/// # Errors
/// The storage cannot be read.
pub async fn batch_secret(storage: &Storage, batch: &str) -> Result<Option<String>, Error> {
    match BatchId::new(batch) {
        Ok(id) => Ledger::new(storage, id).secret().await,
        Err(_) => Ok(None),
    }
}
