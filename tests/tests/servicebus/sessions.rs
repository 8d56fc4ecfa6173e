//! Queues that require sessions: the order of a group, and the messages that have none.

use std::time::{Duration, SystemTime};

use jobqueue::QueueName;
use jobqueue::storage::{GetMessages, LeasedMessage, PutMessage, Storage, UpdateMessage};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Bench, MINUTE};

impl Bench {
    /// Makes a queue that requires sessions.
    pub(super) fn of_sessions() -> Self {
        Self::of_sessions_with(json!({}))
    }

    pub(super) fn of_sessions_with(mut settings: Value) -> Self {
        settings["RequiresSession"] = json!(true);
        settings["MaxDeliveryCount"] = json!(2000);
        Self::with(settings, &[])
    }

    pub(super) async fn put_in(&self, group: &str, text: &str) {
        self.put(PutMessage::new(text).with_group(group.to_owned())).await.unwrap();
    }

    /// Gets messages until there are `count`.
    pub(super) async fn get_all(&self, storage: &Storage, count: usize) -> Vec<LeasedMessage> {
        let mut all = Vec::new();
        let getting = async {
            while all.len() < count {
                let options = GetMessages::new(32, MINUTE);
                match storage.queues().get(&self.queue, options).await {
                    Ok(received) => all.extend(received.messages),
                    Err(error) => assert!(error.is_retryable(), "{error:?}"),
                }
            }
        };
        timeout(2 * MINUTE, getting).await.unwrap_or_else(|_| panic!("not {count} messages came"));
        all
    }

    /// Gets the next message, which must come.
    pub(super) async fn next(&self) -> LeasedMessage {
        self.get_all(&self.storage, 1).await.remove(0)
    }

    pub(super) async fn no_blobs(&self, container: &str, prefix: &str) -> bool {
        let container = jobqueue::storage::ContainerName::new(container).unwrap();
        match self.blobs.blobs().list_blobs(&container, prefix, None).await {
            Ok(page) => page.blobs.is_empty(),
            Err(error) => error.kind() == jobqueue::storage::StoreErrorKind::ContainerNotFound,
        }
    }
}

pub(super) fn text(leased: &LeasedMessage) -> &str {
    leased.text.as_deref().unwrap()
}

#[tokio::test]
async fn messages_of_a_group_come_one_at_a_time_in_their_order() {
    let bench = Bench::of_sessions();
    for number in 0..3 {
        for group in ["a", "b"] {
            bench.put_in(group, &format!("{group}{number}")).await;
        }
    }
    for number in 0..3 {
        let mut both = bench.get_all(&bench.storage, 2).await;
        both.sort_by(|one, two| text(one).cmp(text(two)));
        let texts: Vec<_> = both.iter().map(text).collect();
        assert_eq!(texts, [format!("a{number}"), format!("b{number}")]);
        assert!(bench.get().await.is_none(), "two of a group at once");
        for leased in both {
            bench.delete(&leased.message).await.unwrap();
        }
    }
    assert!(bench.get().await.is_none());
    assert!(bench.no_blobs("jobqueue-servicebus", "texts/").await);
}

#[tokio::test]
async fn messages_without_a_group_do_not_wait_for_each_other() {
    let bench = Bench::of_sessions();
    for number in 0..5 {
        bench
            .put(PutMessage::new(number.to_string()).with_job("/test", format!("job-{number}")))
            .await
            .unwrap();
    }
    let all = bench.get_all(&bench.storage, 5).await;
    assert_eq!(bench.count("active"), 5);
    for leased in all {
        bench.delete(&leased.message).await.unwrap();
    }
    assert_eq!(bench.count("active"), 0);
}

#[tokio::test]
async fn a_message_that_is_given_back_stays_the_first_of_its_group() {
    let bench = Bench::of_sessions();
    for number in 0..2 {
        bench.put_in("a", &number.to_string()).await;
    }
    let first = bench.next().await;
    bench.update(&first.message, UpdateMessage::new(Duration::ZERO)).await.unwrap();
    let again = bench.next().await;
    assert_eq!(text(&again), "0");
    assert_eq!(again.dequeue_count, 2);
    let delay = Duration::from_millis(300);
    let change = UpdateMessage::new(delay).with_text("0 changed".to_owned()).ending_lease();
    let from = SystemTime::now();
    bench.update(&again.message, change).await.unwrap();
    // On a busy machine the delay may be over already.
    let later = match bench.get().await {
        Some(later) => later,
        None => bench.next().await,
    };
    assert!(from.elapsed().unwrap() >= delay, "it came too early");
    assert_eq!(text(&later), "0 changed");
    assert_eq!(&later.message.id, &first.message.id);
    assert!(later.dequeue_count > again.dequeue_count);
    assert_eq!(bench.count("active"), 2);
    assert_eq!(bench.count("scheduled"), 0);
    bench.delete(&later.message).await.unwrap();
    assert_eq!(text(&bench.next().await), "1");
}

#[tokio::test]
async fn a_delay_outlives_the_process_that_gave_the_message_back() {
    let bench = Bench::of_sessions();
    for number in 0..2 {
        bench.put_in("a", &number.to_string()).await;
    }
    let first = bench.next().await;
    let delay = Duration::from_secs(3);
    let change = UpdateMessage::new(delay).with_text("0 changed".to_owned()).ending_lease();
    let from = SystemTime::now();
    bench.update(&first.message, change).await.unwrap();
    let Bench { emulator, blobs, storage, queue } = bench;
    drop(storage);
    let storage = Storage::from(super::options(&emulator).with_blobs_of(&blobs).unwrap());
    let bench = Bench { emulator, blobs, storage, queue };
    let again = bench.next().await;
    assert!(from.elapsed().unwrap() >= delay, "it came too early");
    assert_eq!(text(&again), "0 changed");
    assert!(again.dequeue_count > first.dequeue_count);
}

#[tokio::test]
async fn a_renewal_renews_the_lock_of_the_session() {
    let bench = Bench::of_sessions();
    bench.put_in("a", "0").await;
    let leased = bench.next().await;
    assert!(leased.granted.is_none_or(|granted| granted <= MINUTE + Duration::from_secs(30)), "{leased:?}");
    let apart = bench.storage.detached();
    for _ in 0..3 {
        bench.emulator.advance(MINUTE * 2 / 3);
        apart.queues().update(&bench.queue, &leased.message, UpdateMessage::new(MINUTE)).await.unwrap();
    }
    assert_eq!(bench.emulator.calls("renew-session-lock", "work", 3), 3);
    assert_eq!(bench.emulator.calls("renew-lock", "work", 0), 0);
    bench.delete(&leased.message).await.unwrap();
    assert_eq!(bench.count("active"), 0);
}

#[tokio::test]
async fn a_checkpoint_of_a_session_is_found_by_the_next_delivery() {
    let bench = Bench::of_sessions();
    bench.put_in("a", "first").await;
    let leased = bench.next().await;
    bench.update(&leased.message, UpdateMessage::new(MINUTE).with_text("second".to_owned())).await.unwrap();
    bench.emulator.advance(2 * MINUTE);
    let again = bench.next().await;
    assert_eq!(text(&again), "second");
    assert_eq!(again.dequeue_count, 2);
    bench.delete(&again.message).await.unwrap();
    assert!(bench.no_blobs("jobqueue-servicebus", "texts/").await);
}

#[tokio::test]
async fn a_session_is_released_when_it_is_empty() {
    let bench = Bench::of_sessions();
    bench.put_in("a", "0").await;
    let leased = bench.next().await;
    bench.delete(&leased.message).await.unwrap();
    let other = bench.another();
    bench.put_in("a", "1").await;
    let next = bench.get_all(&other, 1).await;
    assert_eq!(text(&next[0]), "1");
}

#[tokio::test]
async fn a_long_key_is_a_session() {
    let bench = Bench::of_sessions();
    let key = "k".repeat(500);
    bench.put_in(&key, "0").await;
    bench.put_in(&key, "1").await;
    assert_eq!(text(&bench.next().await), "0");
    assert!(bench.get().await.is_none());
}

#[tokio::test]
async fn a_delayed_message_comes_when_its_delay_is_over() {
    let bench = Bench::of_sessions();
    bench
        .put(PutMessage::new("late").with_visibility_delay(MINUTE).with_group("a".to_owned()))
        .await
        .unwrap();
    assert!(bench.get().await.is_none());
    bench.emulator.advance(MINUTE);
    assert_eq!(text(&bench.next().await), "late");
}

#[tokio::test]
async fn a_queue_without_sessions_does_not_order_groups() {
    let bench = Bench::new();
    assert!(!bench.store().orders_groups(&bench.queue).await.unwrap());
    let sessions = Bench::of_sessions();
    assert!(sessions.store().orders_groups(&sessions.queue).await.unwrap());
    let letters = QueueName::new("work-poison").unwrap();
    assert!(!sessions.store().orders_groups(&letters).await.unwrap());
}

// So do all clients of the service; whether it renews a session over another connection is not documented.
#[tokio::test]
async fn a_session_is_renewed_over_the_connection_that_holds_it() {
    let bench = Bench::of_sessions();
    bench.put_in("a", "job").await;
    let leased = bench.next().await;
    let apart = bench.storage.detached();
    apart.queues().update(&bench.queue, &leased.message, UpdateMessage::new(MINUTE)).await.unwrap();
    bench.delete(&leased.message).await.unwrap();
}
