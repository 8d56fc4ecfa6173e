//! The results of the children, which a continuation reads.

use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::de::DeserializeOwned;

use super::ledger::{Ledger, Marker, for_each_blob};
use super::names::{BatchId, OF, child_of};
use crate::error::{Error, ErrorKind};
use crate::job::outcome::Reason;
use crate::worker::Context;

/// The number of results that are read concurrently.
const CONCURRENT_READS: usize = 16;

/// The result of one child. [`Context::batch_results`] returns the results of all children.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChildResult<T> {
    /// The child's number, from 0, in the order of sending.
    pub index: u64,
    /// The value that the child's handler passed to [`Context::set_result`] (`None` if it set no value), or
    /// the failure of a dead-lettered child.
    pub outcome: Result<Option<T>, ChildFailure>,
}

impl<T> ChildResult<T> {
    /// Returns the value that the child's handler has set; `None` if it has set no value, or if the child was
    /// dead-lettered (see [`outcome`](Self::outcome)).
    pub fn value(&self) -> Option<&T> {
        self.outcome.as_ref().ok()?.as_ref()
    }
}

/// The failure of a child that was dead-lettered, or whose job was cancelled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the child has failed ({reason}): {detail}")]
#[non_exhaustive]
pub struct ChildFailure {
    /// The reason for dead-lettering; [`Reason::CANCELLED`] also for a job in order that its sender has
    /// cancelled.
    pub reason: Reason,
    /// The last error.
    pub detail: String,
}

impl Context {
    /// Returns the results of the children in the order in which they were sent. For the handler of a batch's
    /// continuation. A dead-lettered child for which the batch [does not
    /// wait](super::OnDeadLetters::Continue) has a result too.
    ///
    /// All results are held in memory. Let the children of large batches return small results, for instance
    /// the names of blobs.
    ///
    /// # Errors
    /// - [`Invalid`](ErrorKind::Invalid): the job is not the continuation of a batch.
    /// - [`Undecodable`](ErrorKind::Undecodable): a result is not a `T`.
    /// - [`Storage`](ErrorKind::Storage): the results cannot be read, or were swept.
    pub async fn batch_results<T: DeserializeOwned>(&self) -> Result<Vec<ChildResult<T>>, Error> {
        let read = |(index, marker)| Ok(ChildResult { index, outcome: outcome(index, marker)? });
        markers(self).await?.into_iter().map(read).collect()
    }
}

/// Returns the number of each child, and the record of its end.
fn markers(context: &Context) -> BoxFuture<'_, Result<Vec<(u64, Marker)>, Error>> {
    Box::pin(async move {
        let none = || {
            let text = "only the continuation of a batch has results: read them in the handler of the job that `then` sends";
            Error::new(ErrorKind::Invalid, text)
        };
        let swept = || {
            let text =
                "the batch was swept, and its results with it: sweep later, or keep the results elsewhere";
            Error::new(ErrorKind::Storage, text)
        };
        let id = BatchId::new(context.info().headers.get(OF).ok_or_else(none)?)?;
        let ledger = Ledger::new(context.storage(), id);
        let plan = ledger.plan().await?.ok_or_else(swept)?;
        let mut ended = Vec::new();
        let prefix = format!("{}/0/", ledger.id.as_str());
        for_each_blob(context.storage(), &prefix, |name, _| ended.push(child_of(name))).await?;
        // A concurrent start may have sent more children than the sealed plan.
        ended.retain(|index| index.is_none_or(|index| index < plan.children));
        if (ended.len() as u64) < plan.children {
            return Err(Error::new(ErrorKind::Storage, "some results of the batch are missing"));
        }
        let ledger = &ledger;
        let read = move |index: Option<u64>| async move {
            let unknown = || Error::new(ErrorKind::Storage, "a record of the batch has an unknown name");
            let index = index.ok_or_else(unknown)?;
            let marker = ledger.read(&ledger.id.marker(0, index)?).await?;
            Ok((index, marker.ok_or_else(swept)?))
        };
        stream::iter(ended.into_iter().map(read)).buffered(CONCURRENT_READS).try_collect().await
    })
}

fn outcome<T: DeserializeOwned>(
    index: u64,
    marker: Marker,
) -> Result<Result<Option<T>, ChildFailure>, Error> {
    match marker {
        Marker::Failed { reason, detail } => Ok(Err(ChildFailure { reason: Reason::new(&reason), detail })),
        Marker::Done(None) | Marker::Group => Ok(Ok(None)),
        Marker::Done(Some(raw)) => {
            serde_json::from_str(raw.get()).map(|result| Ok(Some(result))).map_err(|e| {
                let wanted = std::any::type_name::<T>();
                let text = format!(
                    "the result of child {index} is not a `{wanted}`: read it as the type that its handler sets"
                );
                Error::new(ErrorKind::Undecodable, text).with_source(e)
            })
        }
    }
}
