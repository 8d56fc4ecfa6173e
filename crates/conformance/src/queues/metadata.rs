//! Promises about the metadata and the length of a queue.

use crate::prelude::*;

promises! { "metadata";
    /// Metadata given at creation is read back.
    async fn of_creation_is_read_back(subject, queue: missing_queue) {
        let metadata = Metadata::new().with("poisonthreshold", "3").with("defaulttimeout", "30");
        queue.store.create_queue(&queue.name, &metadata).await?;
        ensure_eq!(queue.store.queue_properties(&queue.name).await?.metadata, metadata, "metadata");
    }

    /// Setting metadata replaces all of it.
    async fn is_replaced_as_a_whole(subject, queue) {
        queue.store.set_queue_metadata(&queue.name, &Metadata::new().with("a", "1").with("b", "2")).await?;
        let second = Metadata::new().with("b", "3");
        queue.store.set_queue_metadata(&queue.name, &second).await?;
        ensure_eq!(queue.store.queue_properties(&queue.name).await?.metadata, second, "metadata");
        ensure_eq!(queue.store.queue_metadata(&queue.name).await?, second, "metadata alone");
    }

    /// A conditional replacement succeeds only if the metadata is still what the caller has read.
    async fn is_replaced_on_condition(subject, queue) {
        let (none, a) = (Metadata::new(), |value| Metadata::new().with("a", value));
        let (first, second, third) = (a("1"), a("2"), a("3"));
        let replace = |before, metadata| queue.store.replace_queue_metadata(&queue.name, before, metadata);
        replace(&none, &first).await?;
        replace(&first, &second).await?;
        for former in [&none, &first] {
            refused(replace(former, &third).await, &[K::ConditionNotMet])?;
        }
        ensure_eq!(queue.store.queue_metadata(&queue.name).await?, second, "metadata");
        replace(&second, &none).await?;
        replace(&none, &third).await?;
        ensure_eq!(queue.store.queue_metadata(&queue.name).await?, third, "metadata");
    }

    /// Of many concurrent replacements of the same metadata, exactly one succeeds.
    async fn is_replaced_by_one_of_many(subject, queue) {
        if queue.store.powers().metadata.is_none() {
            return Ok(());
        }
        let before = Metadata::new();
        let wanted: Vec<_> = (0..10).map(|number| Metadata::new().with("a", number.to_string())).collect();
        let replace = |metadata| queue.store.replace_queue_metadata(&queue.name, &before, metadata);
        let replaced = join_all(wanted.iter().map(replace)).await;
        let found = queue.store.queue_metadata(&queue.name).await?;
        for (answer, metadata) in replaced.into_iter().zip(&wanted) {
            if found == *metadata {
                answer?;
            } else {
                refused(answer, &[K::ConditionNotMet])?;
            }
        }
        ensure!(wanted.contains(&found), "metadata: {found:?}");
    }

    /// Setting empty metadata removes all of it.
    async fn can_be_removed(subject, queue) {
        queue.store.set_queue_metadata(&queue.name, &Metadata::new().with("a", "1")).await?;
        queue.store.set_queue_metadata(&queue.name, &Metadata::new()).await?;
        ensure!(queue.store.queue_properties(&queue.name).await?.metadata.is_empty(), "some metadata is left");
    }

    /// Metadata is found regardless of the case of its name.
    async fn is_found_in_any_case(subject, queue) {
        queue.store.set_queue_metadata(&queue.name, &Metadata::new().with("PoisonThreshold", "7")).await?;
        let metadata = queue.store.queue_properties(&queue.name).await?.metadata;
        ensure_eq!(metadata.get("poisonthreshold"), Some("7"), "value");
    }

    /// Values of printable ASCII come back unchanged.
    async fn keeps_values(subject, queue) {
        let metadata = Metadata::new().with("_a1", r#"x=1; "y", {z: [/\]} %20 +"#).with("b", "ffff-0");
        queue.store.set_queue_metadata(&queue.name, &metadata).await?;
        ensure_eq!(queue.store.queue_properties(&queue.name).await?.metadata, metadata, "metadata");
    }

    /// Metadata names that are not identifiers are refused.
    async fn refuses_names_that_are_not_identifiers(subject, queue) {
        let deviates = subject.deviates(Deviation::MetadataNamesNotChecked);
        for name in ["1bad", "a-b"] {
            let metadata = Metadata::new().with(name, "1");
            let set = queue.store.set_queue_metadata(&queue.name, &metadata).await;
            refused_unless(deviates, set, &[K::InvalidInput])?;
            let other = subject.missing_queue().await?;
            let created = other.store.create_queue(&other.name, &metadata).await;
            refused_unless(deviates, created, &[K::InvalidInput])?;
        }
    }

    /// Metadata of more than 8 KiB is refused.
    async fn refuses_more_than_8_kib(subject, queue) {
        let metadata = Metadata::new().with("a", "x".repeat(4096)).with("b", "x".repeat(4096));
        let set = queue.store.set_queue_metadata(&queue.name, &metadata).await;
        let deviates = subject.deviates(Deviation::MetadataSizeNotChecked);
        refused_unless(deviates, set, &[K::InvalidInput, K::TooLarge])?;
    }

    /// Setting metadata leaves messages and their receipts alone.
    async fn does_not_concern_messages(subject, queue) {
        let message = queue.put_and_get("text", LONG_TIMEOUT).await?.message;
        queue.store.set_queue_metadata(&queue.name, &Metadata::new().with("a", "1")).await?;
        queue.delete(&message).await?;
    }

    /// The length counts visible, leased and delayed messages.
    async fn counts_invisible_messages_too(subject, queue) {
        queue.put("leased").await?;
        queue.get_one(LONG_TIMEOUT).await?;
        queue.put("visible").await?;
        queue.put_with(PutMessage::new("delayed").with_visibility_delay(LONG_TIMEOUT)).await?;
        ensure_eq!(queue.count().await?, 3, "messages");
    }

    /// The length falls when messages are deleted.
    async fn counts_no_deleted_messages(subject, queue) {
        let first = queue.put_and_get("one", LONG_TIMEOUT).await?.message;
        queue.put("two").await?;
        queue.delete(&first).await?;
        ensure_eq!(queue.count().await?, 1, "messages");
    }

    /// The length does not count messages whose time to live is over.
    async fn counts_no_expired_messages(subject, queue) {
        queue.put_with(PutMessage::new("short").with_ttl(Some(secs(1)))).await?;
        subject.advance(secs(2)).await;
        let count = queue.count().await?;
        ensure_eq!(count, u64::from(subject.deviates(Deviation::CountKeepsExpired)), "messages");
    }

    /// The length is never zero while an unexpired message exists, however many others have expired.
    async fn counts_a_message_among_expired_ones(subject, queue) {
        let short = vec![PutMessage::new("short").with_ttl(Some(secs(1))); 40];
        for put in queue.store.put_all(&queue.name, short.into()).await {
            put?;
        }
        queue.put("text").await?;
        subject.advance(secs(2)).await;
        let count = queue.count().await?;
        ensure!(count > 0, "nothing is counted");
        ensure!(count == 1 || subject.deviates(Deviation::CountKeepsExpired), "{count} messages");
    }
}
