//! Promises about listing queues.

use crate::prelude::*;

promises! { "list";
    /// All queues with a prefix are listed once, in the order of their names.
    async fn has_every_queue_in_order(subject) {
        let mut names = Vec::new();
        for _ in 0..5 {
            names.push(subject.queue_name()?);
        }
        for name in names.iter().rev() {
            subject.storage().queues().create_queue(name, &Metadata::new()).await?;
        }
        let mut listed = subject.storage().queues().list_queues(&subject.prefix()).await?;
        ensure!(listed.is_sorted(), "not in order: {listed:?}");
        listed.retain(|name| names.contains(name));
        names.sort();
        ensure_eq!(listed, names, "the queues");
    }

    /// A listing has only queues with the prefix.
    async fn has_only_queues_with_the_prefix(subject, queue) {
        let listed = subject.storage().queues().list_queues(queue.name.as_str()).await?;
        ensure!(listed.contains(&queue.name), "{} is missing", queue.name);
        ensure!(
            listed.iter().all(|name| name.as_str().starts_with(queue.name.as_str())),
            "others are listed: {listed:?}"
        );
        let none = subject.storage().queues().list_queues(&format!("{}x", subject.prefix())).await?;
        ensure!(none.is_empty(), "no queue begins so: {none:?}");
    }

    /// A deleted queue is no longer listed.
    async fn forgets_deleted_queues(subject, queue) {
        queue.store.delete_queue(&queue.name).await?;
        let listed = queue.store.list_queues(&subject.prefix()).await?;
        ensure!(!listed.contains(&queue.name), "a deleted queue is listed");
    }
}
