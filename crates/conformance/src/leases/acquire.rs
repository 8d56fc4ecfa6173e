//! Promises about acquiring the lease of a blob.

use std::time::Duration;

use crate::prelude::*;

promises! { "acquire" if crate::leases::are_granted;
    /// An available lease is acquired under the proposed id.
    async fn takes_an_available_lease(subject, blob) {
        let id = lease_id();
        ensure_eq!(blob.acquire(60, id).await?, id, "id");
        ensure!(blob.is_leased().await?, "not leased");
    }

    /// The holder may acquire again, even for another duration, so that it can retry after a lost answer.
    async fn can_be_repeated_by_the_holder(subject, blob) {
        let id = blob.leased().await?;
        ensure_eq!(blob.acquire(15, id).await?, id, "id");
        ensure!(blob.is_leased().await?, "not leased");
    }

    /// A lease that is held cannot be acquired again, and the refusal does not show its id.
    async fn is_refused_while_another_holds(subject, blob) {
        let id = blob.leased().await?;
        refused(blob.acquire(60, lease_id()).await, &[K::LeaseAlreadyPresent])?;
        blob.renew(id).await?;
    }

    /// Of many concurrent acquisitions, exactly one succeeds.
    async fn has_one_winner(subject, blob) {
        let tries = join_all((0..20).map(|_| blob.acquire(60, lease_id()))).await;
        let won: Vec<_> = tries.iter().filter_map(|answer| answer.as_ref().ok()).collect();
        ensure_eq!(won.len(), 1, "winners");
        blob.renew(*won[0]).await?;
    }

    /// A lease lasts 15 to 60 whole seconds; other durations are refused.
    async fn takes_15_to_60_seconds(subject, blob) {
        let id = lease_id();
        for bad in [0, 14_000, 15_500, 61_000, 4_294_967_295_000] {
            let duration = Duration::from_millis(bad);
            refused(blob.leases()?.acquire_lease(&blob.name, duration, &id).await, &[K::InvalidInput])?;
        }
        ensure!(!blob.is_leased().await?, "still leased");
        for good in [15, 60] {
            blob.acquire(good, id).await?;
        }
    }

    /// Acquiring, renewing and releasing a lease change neither the tag nor the date of the blob.
    async fn is_not_a_write(subject, blob) {
        let before = blob.properties().await?;
        let id = blob.leased().await?;
        blob.renew(id).await?;
        blob.release(id).await?;
        let after = blob.properties().await?;
        ensure_eq!(after.etag, before.etag, "tag");
        ensure_eq!(after.modified, before.modified, "date");
    }

    /// The leases of two blobs are independent.
    async fn concerns_one_blob(subject, blob) {
        let id = blob.leased().await?;
        let other = blob.sibling("other")?;
        other.write("x").await?;
        other.acquire(60, id).await?;
        blob.release(id).await?;
        ensure!(other.is_leased().await?, "not leased");
    }
}
