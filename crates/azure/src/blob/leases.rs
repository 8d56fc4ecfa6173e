//! Implements Lease Blob. Every action except a break names its lease's id, and so may be repeated.

use std::time::Duration;

use azure_core::http::headers::Headers;
use azure_storage_blob::models::{BlobClientAcquireLeaseOptions, BlobClientBreakLeaseOptions};

use super::super::call::Call;
use super::super::connection::Connection;
use super::super::time;
use jobqueue_storage::BlobName;
use jobqueue_storage::rules::limits;
use jobqueue_storage::{LeaseDuration, LeaseId, StoreError, StoreErrorKind};

pub(super) async fn acquire(
    connection: &Connection,
    blob: &BlobName,
    duration: LeaseDuration,
    proposed: &LeaseId,
) -> Result<LeaseId, StoreError> {
    let call = Call::repeatable("acquire lease", blob);
    limits::check_lease_duration(blob, duration)?;
    let seconds = match duration {
        LeaseDuration::Infinite => -1,
        LeaseDuration::Finite(length) => time::seconds(call, "a lease", length)?,
    };
    let answer = call
        .run_again(connection.runtime(), || async {
            let options = BlobClientAcquireLeaseOptions {
                proposed_lease_id: Some(proposed.expose()),
                ..BlobClientAcquireLeaseOptions::default()
            };
            connection.blob(blob).acquire_lease(seconds, Some(options)).await
        })
        .await?;
    lease_id(call, answer.headers())
}

pub(super) async fn renew(
    connection: &Connection,
    blob: &BlobName,
    lease: &LeaseId,
) -> Result<LeaseId, StoreError> {
    let call = Call::repeatable("renew lease", blob);
    let answer = call
        .run_again(connection.runtime(), || async {
            connection.blob(blob).renew_lease(lease.expose(), None).await
        })
        .await?;
    lease_id(call, answer.headers())
}

pub(super) async fn change(
    connection: &Connection,
    blob: &BlobName,
    lease: &LeaseId,
    proposed: &LeaseId,
) -> Result<LeaseId, StoreError> {
    let call = Call::repeatable("change lease", blob);
    let answer = call
        .run_again(connection.runtime(), || async {
            connection.blob(blob).change_lease(lease.expose(), proposed.expose(), None).await
        })
        .await?;
    lease_id(call, answer.headers())
}

pub(super) async fn release(
    connection: &Connection,
    blob: &BlobName,
    lease: &LeaseId,
) -> Result<(), StoreError> {
    let call = Call::repeatable("release lease", blob);
    let released = call
        .run_again(connection.runtime(), || async {
            connection.blob(blob).release_lease(lease.expose(), None).await
        })
        .await;
    match released {
        // An earlier request changed the id, and only its answer was lost. A later holder would have another id.
        Err(error) if error.is_ambiguous() && is_gone(error.kind()) => Ok(()),
        released => released.map(drop),
    }
}

/// Returns whether a refusal means that the lease with this id has ended.
fn is_gone(kind: StoreErrorKind) -> bool {
    use StoreErrorKind as K;
    matches!(kind, K::LeaseNotPresent | K::LeaseIdMismatch | K::BlobNotFound | K::ContainerNotFound)
}

pub(super) async fn break_lease(
    connection: &Connection,
    blob: &BlobName,
    period: Option<Duration>,
) -> Result<Duration, StoreError> {
    // A break is not repeated: a second one may meet the next owner's lease.
    let call = Call::once("break lease", blob);
    limits::check_break_period(blob, period)?;
    let period = period.map(|period| time::seconds(call, "a break period", period)).transpose()?;
    let answer = call
        .run(async {
            let options = BlobClientBreakLeaseOptions {
                break_period: period,
                ..BlobClientBreakLeaseOptions::default()
            };
            connection.blob(blob).break_lease(Some(options)).await
        })
        .await?;
    let left =
        answer.headers().get_optional_str(&"x-ms-lease-time".into()).and_then(|left| left.parse().ok());
    left.map(Duration::from_secs).ok_or_else(|| call.unreadable("the answer has no x-ms-lease-time"))
}

fn lease_id(call: Call<'_>, headers: &Headers) -> Result<LeaseId, StoreError> {
    headers
        .get_optional_str(&"x-ms-lease-id".into())
        .and_then(LeaseId::parse)
        .ok_or_else(|| call.unreadable("the answer has no lease id"))
}
