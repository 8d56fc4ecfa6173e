//! Promises of breaking a blob's lease.

use std::time::Duration;

use crate::prelude::*;

/// Returns an error unless `left` is the rest of `whole` a moment later.
fn about(subject: &Subject, left: Duration, whole: u64) -> Result<(), Broken> {
    ensure!(left <= secs(whole) && left + subject.tolerance() >= secs(whole), "{left:?} of {whole} s");
    Ok(())
}

promises! { "break" if crate::leases::are_granted;
    /// A break of no time ends the lease at once.
    async fn of_zero_ends_the_lease(subject, blob) {
        blob.leased().await?;
        ensure_eq!(blob.break_in(0).await?, secs(0), "time left");
        ensure_eq!(blob.lease_state().await?, LeaseState::Broken, "state");
    }

    /// A break takes the time it is given, and then the lease is broken.
    async fn takes_its_time(subject, blob) {
        blob.leased().await?;
        ensure!(blob.break_in(2).await? <= secs(2), "more time left than given");
        ensure_eq!(blob.lease_state().await?, LeaseState::Breaking, "state");
        subject.advance(secs(2)).await;
        ensure_eq!(blob.lease_state().await?, LeaseState::Broken, "state later");
    }

    /// A break never takes longer than the lease would have.
    async fn takes_no_longer_than_the_lease(subject, blob) {
        blob.acquire(20, lease_id()).await?;
        about(subject, blob.break_in(60).await?, 20)?;
    }

    /// A break without a period lets a finite lease run out.
    async fn without_period_waits_for_the_end(subject, blob) {
        blob.acquire(30, lease_id()).await?;
        about(subject, blob.leases()?.break_lease(&blob.name, None).await?, 30)?;
        ensure_eq!(blob.lease_state().await?, LeaseState::Breaking, "state");
    }

    /// A break without a period ends an infinite lease at once.
    async fn without_period_ends_an_infinite_lease(subject, blob) {
        blob.acquire_forever(lease_id()).await?;
        ensure_eq!(blob.leases()?.break_lease(&blob.name, None).await?, secs(0), "time left");
        ensure_eq!(blob.lease_state().await?, LeaseState::Broken, "state");
    }

    /// An infinite lease is broken in the period given.
    async fn of_an_infinite_lease_takes_its_time(subject, blob) {
        blob.acquire_forever(lease_id()).await?;
        about(subject, blob.break_in(40).await?, 40)?;
        ensure_eq!(blob.lease_state().await?, LeaseState::Breaking, "state");
    }

    /// Of two breaks the shorter wins.
    async fn can_be_shortened_only(subject, blob) {
        blob.leased().await?;
        blob.break_in(30).await?;
        about(subject, blob.break_in(50).await?, 30)?;
        about(subject, blob.break_in(10).await?, 10)?;
        blob.break_in(0).await?;
        ensure_eq!(blob.lease_state().await?, LeaseState::Broken, "state");
    }

    /// A broken lease can be broken again, which changes nothing.
    async fn of_a_broken_lease_changes_nothing(subject, blob) {
        blob.broken().await?;
        ensure_eq!(blob.break_in(30).await?, secs(0), "time left");
        ensure_eq!(blob.lease_state().await?, LeaseState::Broken, "state");
    }

    /// A blob without a lease has none to break.
    async fn needs_a_lease(subject, blob) {
        refused(blob.break_in(0).await, &[K::LeaseNotPresent])?;
        refused(blob.break_in(10).await, &[K::LeaseNotPresent])?;
    }

    /// A break takes 0 to 60 whole seconds; other periods are refused.
    async fn takes_up_to_60_seconds(subject, blob) {
        let id = blob.leased().await?;
        for bad in [Duration::from_secs(61), Duration::from_millis(1500)] {
            refused(blob.leases()?.break_lease(&blob.name, Some(bad)).await, &[K::InvalidInput])?;
        }
        blob.renew(id).await?;
    }
}
