//! Promises about storages that keep the order of groups.

use std::time::Duration;

use crate::deviation::UNORDERED;
use crate::prelude::*;
use crate::subscribe::{arrives, drain};

async fn ordered(subject: &Subject) -> Result<TestQueue, Broken> {
    let queue = subject.queue().await?;
    ensure!(queue.store.orders_groups(&queue.name).await?, "{UNORDERED}");
    Ok(queue)
}

/// Returns a queue with two messages of a group. `change` is applied to the first message before its put.
async fn two_of_a_group(
    subject: &Subject,
    change: impl FnOnce(PutMessage) -> PutMessage,
) -> Result<TestQueue, Broken> {
    let queue = ordered(subject).await?;
    let [first, second] =
        ["first", "second"].map(|text| PutMessage::new(text).with_group("group".to_owned()));
    queue.put_with(change(first)).await?;
    queue.put_with(second).await?;
    Ok(queue)
}

async fn next_is(queue: &TestQueue, expected: &str) -> Result<MessageRef, Broken> {
    let all = queue.get_all(LONG_TIMEOUT).await?;
    let texts: Vec<_> = all.iter().filter_map(|leased| leased.text.as_deref().ok()).collect();
    ensure_eq!(texts, [expected], "the messages that were received");
    Ok(all.into_iter().next().ok_or_else(|| Broken::new("no message"))?.message)
}

promises! { "groups" if |storage| storage.queues().powers().groups.is_some();
    /// A message is delivered only after all earlier messages of its group are deleted.
    async fn are_delivered_in_order(subject) {
        for together in [false, true] {
            let queue = ordered(subject).await?;
            let grouped = |(text, group): (&str, &str)| PutMessage::new(text).with_group(group.to_owned());
            let messages = [("a1", "a"), ("a2", "a"), ("b1", "b")].map(grouped);
            if together {
                for put in queue.store.put_all(&queue.name, messages.to_vec().into()).await {
                    put?;
                }
            } else {
                for message in messages {
                    queue.put_with(message).await?;
                }
            }
            let mut first = queue.get_all(LONG_TIMEOUT).await?;
            first.sort_by_key(|leased| leased.text.clone().ok());
            let texts: Vec<_> = first.iter().filter_map(|leased| leased.text.as_deref().ok()).collect();
            ensure_eq!(texts, ["a1", "b1"], "the first of each group, put together: {together}");
            queue.update(&first[0].message, secs(0)).await?;
            let again = queue.get_one(LONG_TIMEOUT).await?;
            ensure_eq!(again.text.as_deref(), Ok("a1"), "the first of its group, after it was given back");
            queue.delete(&again.message).await?;
            ensure_eq!(queue.get_one(LONG_TIMEOUT).await?.text.as_deref(), Ok("a2"), "the next of its group");
        }
    }

    /// A message that is released with a delay holds back its group.
    async fn wait_for_a_message_that_is_given_back(subject) {
        let queue = two_of_a_group(subject, |first| first).await?;
        let first = next_is(&queue, "first").await?;
        queue.update_with(&first, UpdateMessage::new(LONG_TIMEOUT).ending_lease()).await?;
        ensure!(queue.get_all(LONG_TIMEOUT).await?.is_empty(), "a message overtook one of its group that backs off");
    }

    /// A message whose lease has ended is received again before the later messages of its group.
    async fn wait_for_a_message_whose_lease_has_ended(subject) {
        let queue = two_of_a_group(subject, |first| first).await?;
        let leased = queue.get(1, secs(1)).await?;
        ensure_eq!(leased.len(), 1, "the messages that were received");
        ensure!(queue.get_all(LONG_TIMEOUT).await?.is_empty(), "a message overtook one of its group that is leased");
        subject.advance(secs(2)).await;
        let first = next_is(&queue, "first").await?;
        queue.delete(&first).await?;
        next_is(&queue, "second").await?;
    }

    /// A message that is put with a delay holds back its group.
    async fn wait_for_a_delayed_message(subject) {
        let delayed = |first: PutMessage| first.with_visibility_delay(LONG_TIMEOUT);
        let queue = two_of_a_group(subject, delayed).await?;
        ensure!(queue.get_all(LONG_TIMEOUT).await?.is_empty(), "a message overtook one of its group that is delayed");
    }

    /// An expired message holds back its group for a few seconds at most.
    @slow async fn go_on_after_an_expired_message(subject) {
        let short = |first: PutMessage| first.with_ttl(secs(1));
        let queue = two_of_a_group(subject, short).await?;
        let mut next = Vec::new();
        for _ in 0..10 {
            if next.is_empty() {
                subject.advance(secs(2)).await;
                next = queue.get(1, LONG_TIMEOUT).await?;
            }
        }
        let text = next.first().map(|leased| leased.text.as_deref());
        ensure_eq!(text, Some(Ok("second")), "the message after the expired message");
    }

    /// After a list of deletions, each group continues.
    async fn go_on_after_deletions_together(subject) {
        let queue = two_of_a_group(subject, |first| first).await?;
        let first = next_is(&queue, "first").await?;
        for deleted in queue.store.delete_all(&queue.name, vec![first], ExpiredReceipt::Refuse).await {
            deleted?;
        }
        next_is(&queue, "second").await?;
    }

    /// Deleting the first message of a group notifies the subscribers that wait for the next message.
    async fn notify_of_the_next(subject) {
        for in_a_list in [false, true] {
            let queue = two_of_a_group(subject, |first| first).await?;
            let Some(mut subscription) = queue.store.subscribe(&queue.name) else { return Ok(()) };
            let first = next_is(&queue, "first").await?;
            drain(&mut subscription).await;
            if in_a_list {
                queue.store.delete_all(&queue.name, vec![first], ExpiredReceipt::Refuse).await;
            } else {
                queue.delete(&first).await?;
            }
            arrives(&mut subscription).await?;
        }
    }

    /// Groups of the same name in two queues are independent.
    async fn belong_to_their_queue(subject) {
        let queues = [
            two_of_a_group(subject, |first| first).await?,
            two_of_a_group(subject, |first| first).await?,
        ];
        for queue in &queues {
            next_is(queue, "first").await?;
        }
    }

    /// The receipt of a put deletes a message that waits in its group, and the later messages continue.
    async fn lose_a_waiting_message_that_its_sender_deletes(subject) {
        if subject.deviates(Deviation::PutReceiptCancelsDelayOnly) {
            return Ok(());
        }
        let queue = two_of_a_group(subject, |first| first).await?;
        let grouped = |text: &str| PutMessage::new(text).with_group("group".to_owned());
        let third = queue.put_with(grouped("third")).await?.message;
        queue.put_with(grouped("fourth")).await?;
        queue.delete(&third).await?;
        for expected in ["first", "second", "fourth"] {
            let message = next_is(&queue, expected).await?;
            queue.delete(&message).await?;
        }
    }

    /// While messages are put into a group, its messages are received one by one, in order, and none is lost.
    async fn go_on_while_others_are_put(subject) {
        const COUNT: usize = 30;
        let queue = two_of_a_group(subject, |first| first).await?;
        let put = async {
            for number in 0..COUNT {
                let message = PutMessage::new(number.to_string()).with_group("group".to_owned());
                queue.put_with(message).await?;
            }
            Ok::<_, Broken>(())
        };
        let receive = async {
            let mut texts = Vec::new();
            while texts.len() < COUNT + 2 {
                let leased = queue.get(32, LONG_TIMEOUT).await?;
                ensure!(leased.len() <= 1, "two messages of a group are leased");
                for message in leased {
                    queue.delete(&message.message).await?;
                    texts.push(message.text.unwrap_or_default());
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let expected = ["first", "second"].map(str::to_owned).into_iter();
            ensure_eq!(texts, expected.chain((0..COUNT).map(|number| number.to_string())).collect::<Vec<_>>(), "texts");
            Ok(())
        };
        let limited = tokio::time::timeout(secs(60), async { futures_util::join!(put, receive) });
        let (put, received) = limited.await.map_err(|_| Broken::new("a message of the group did not come"))?;
        put?;
        received?;
    }
}
