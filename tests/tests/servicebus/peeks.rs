//! Looks at a queue: what a peek and a count read, and what they show.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use jobqueue::storage::{Metadata, PeekedMessage, PutMessage, UpdateMessage};
use jobqueue_admin::Admin;
use jobqueue_dashboard::metrics;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower::ServiceExt as _;

use super::late_answers::{pass, until};
use super::{Bench, MINUTE};

const SOON: Duration = Duration::from_secs(10);

impl Bench {
    pub(super) async fn put_delayed(&self, count: u32) {
        let delayed = |number: u32| PutMessage::new(number.to_string()).with_visibility_delay(MINUTE);
        for put in self.store().put_all(&self.queue, (0..count).map(delayed).collect()).await {
            put.unwrap();
        }
    }

    /// Puts delayed messages over connections of their own until the set is dropped.
    fn keep_putting(&self) -> JoinSet<()> {
        (0..8)
            .map(|_| {
                let (storage, queue) = (self.another(), self.queue.clone());
                async move {
                    loop {
                        let delayed = PutMessage::new("another").with_visibility_delay(MINUTE);
                        storage.queues().put(&queue, delayed).await.unwrap();
                    }
                }
            })
            .collect()
    }
}

// It read the whole queue, with all bodies, for each look at it.
#[tokio::test]
async fn peek_behind_many_delayed_messages_is_bounded() {
    let bench = Bench::new();
    bench.put_delayed(600).await;
    assert!(bench.store().peek(&bench.queue, 1).await.unwrap().is_empty());
    // The message that is wanted, and then pages.
    assert_eq!(bench.emulator.calls("peek-message", "work", 0), 5);
}

// It showed the text and the attempts before the checkpoint.
#[tokio::test]
async fn peek_shows_what_was_saved_under_a_lock_that_is_over() {
    let bench = Bench::new();
    let leased = bench.leased("first").await;
    bench.update(&leased.message, UpdateMessage::new(MINUTE).with_text("second".to_owned())).await.unwrap();
    bench.emulator.advance(MINUTE);
    let shown = bench.another().queues().peek(&bench.queue, 1).await.unwrap();
    assert_eq!(shown[0].text.as_deref(), Ok("second"));
    assert_eq!(shown[0].dequeue_count, 1);
}

// The age of the oldest counted as 0, also while jobs waited behind those that are delayed.
#[tokio::test]
async fn age_that_a_peek_cannot_show_is_not_told_as_none() {
    let bench = Bench::new();
    let scraped = async || {
        let router = metrics::router(Admin::builder(bench.storage.clone()).build());
        let request = Request::get("/metrics").body(Body::empty()).unwrap();
        let body = router.oneshot(request).await.unwrap().into_body();
        String::from_utf8(to_bytes(body, usize::MAX).await.unwrap().to_vec()).unwrap()
    };
    let age = r#"jobqueue_queue_oldest_age_seconds{queue="work"}"#;
    let text = scraped().await;
    assert!(text.contains(&format!("{age} 0.0")), "{text}");
    bench.put_delayed(500).await;
    bench.put(PutMessage::new("job")).await.unwrap();
    let text = scraped().await;
    assert!(text.contains(r#"jobqueue_queue_length{queue="work"} 501"#) && !text.contains(age), "{text}");
}

// Without the claim Manage, each caller had all messages sent for a count.
#[tokio::test]
async fn count_that_took_long_is_good_for_a_while() {
    let bench = Bench::new();
    bench.put(PutMessage::new("job")).await.unwrap();
    bench.emulator.plant_with("http-get", "error", json!({ "status": 401, "times": null }));
    let fault = bench.emulator.plant("peek-message", "hold");
    let (storage, queue) = (bench.storage.clone(), bench.queue.clone());
    let counting = tokio::spawn(async move { storage.queues().queue_properties(&queue).await });
    until(|| fault.hits() == 1).await;
    pass(Duration::from_secs(3)).await;
    fault.release();
    assert_eq!(counting.await.unwrap().unwrap().approximate_count, 1);
    let peeks = bench.emulator.calls("peek-message", "work", 0);
    bench.put(PutMessage::new("another")).await.unwrap();
    assert_eq!(bench.store().queue_properties(&bench.queue).await.unwrap().approximate_count, 1);
    assert_eq!(bench.emulator.calls("peek-message", "work", 0), peeks);
    pass(MINUTE).await;
    assert_eq!(bench.store().queue_properties(&bench.queue).await.unwrap().approximate_count, 2);
}

// A caller with less time than a count takes threw it away, and each of them counted from the beginning.
#[tokio::test]
async fn count_goes_on_without_its_caller() {
    let bench = Bench::new();
    bench.put(PutMessage::new("job")).await.unwrap();
    bench.emulator.plant_with("http-get", "error", json!({ "status": 401, "times": null }));
    let peeks = || bench.emulator.calls("peek-message", "work", 0);
    let count = async || bench.store().queue_properties(&bench.queue).await.unwrap().approximate_count;
    assert_eq!(count().await, 1);
    let cost = peeks();
    let fault = bench.emulator.plant("peek-message", "hold");
    let (storage, queue) = (bench.storage.clone(), bench.queue.clone());
    let counting = tokio::spawn(async move { storage.queues().queue_properties(&queue).await });
    until(|| fault.hits() == 1).await;
    counting.abort();
    assert!(counting.await.unwrap_err().is_cancelled());
    pass(Duration::from_secs(3)).await;
    fault.release();
    assert_eq!(count().await, 1);
    assert_eq!(peeks(), 2 * cost);
    // It is good for a while, but no longer than the messages are there.
    bench.store().clear(&bench.queue).await.unwrap();
    assert_eq!(count().await, 0);
}

// It began at the first message each time, and never came to what waits behind so many.
#[tokio::test]
async fn peek_goes_on_behind_delayed_messages_where_the_last_one_ended() {
    let bench = Bench::new();
    let peeked = async || {
        let peeked = bench.store().peek(&bench.queue, 1).await.unwrap();
        peeked.first().map(|message| message.text.clone().unwrap())
    };
    bench.put_delayed(450).await;
    bench.put(PutMessage::new("job")).await.unwrap();
    assert_eq!(peeked().await, None);
    assert_eq!(peeked().await.as_deref(), Some("job"));
    // What was delayed is appended to the queue when its delay is over.
    bench.emulator.advance(MINUTE * 2);
    let job = bench.get().await.unwrap();
    bench.delete(&job.message).await.unwrap();
    assert_eq!(peeked().await.as_deref(), Some("0"));
    let another = bench.another();
    another.queues().delete_queue(&bench.queue).await.unwrap();
    another.queues().create_queue(&bench.queue, &Metadata::new()).await.unwrap();
    another.queues().put(&bench.queue, PutMessage::new("first of another")).await.unwrap();
    let found = timeout(SOON, async {
        while bench.store().peek(&bench.queue, 1).await.is_err() {}
        peeked().await
    });
    assert_eq!(found.await.unwrap().as_deref(), Some("first of another"));
}

// It stopped in the same place each time: one job that runs hid all that wait behind the delayed ones.
#[tokio::test]
async fn peek_behind_an_active_message_goes_on_where_the_last_one_ended() {
    let bench = Bench::new();
    bench.leased("runs").await;
    bench.put_delayed(450).await;
    bench.put(PutMessage::new("waits")).await.unwrap();
    let mut looks = Vec::new();
    for _ in 0..3 {
        let peeked = bench.store().peek(&bench.queue, 2).await.unwrap();
        looks.push(peeked.into_iter().map(|message| message.text.unwrap()).collect::<Vec<_>>());
    }
    assert_eq!(looks, [vec!["runs"], vec!["runs", "waits"], vec!["runs", "waits"]]);
}

// Each walk met messages that had come meanwhile, and another one followed.
#[tokio::test]
async fn a_queue_is_cleared_and_counted_while_messages_come() {
    let bench = Bench::new();
    bench.put_delayed(150).await;
    let putting = bench.keep_putting();
    timeout(3 * SOON, bench.store().clear(&bench.queue)).await.expect("it is never cleared").unwrap();
    bench.emulator.plant_with("http-get", "error", json!({ "status": 401, "times": null }));
    let counting = timeout(3 * SOON, bench.store().queue_properties(&bench.queue));
    counting.await.expect("it is never counted").unwrap();
    drop(putting);
}

// In sessions a put-back changes no message: a look showed each job as it was sent, and one that was held for
// its back-off as visible.
#[tokio::test]
async fn look_at_a_session_shows_what_was_saved_for_its_message() {
    let bench = Bench::of_sessions();
    let look = async || bench.store().peek(&bench.queue, 10).await.unwrap();
    bench.put_in("a", "as it was sent").await;
    bench.put_in("b", "another").await;
    let [first, _] = &bench.get_all(&bench.storage, 2).await[..] else { panic!() };
    let message = &first.message;
    let put_back = |text: &str, delay| UpdateMessage::new(delay).with_text(text.to_owned()).ending_lease();
    bench.update(message, put_back("failed once", Duration::ZERO)).await.unwrap();
    let of_first = |seen: Vec<PeekedMessage>| seen.into_iter().find(|seen| seen.id == message.id);
    let seen = of_first(look().await).unwrap();
    assert_eq!(seen.text.as_deref(), Ok("failed once"));
    assert_eq!(seen.dequeue_count, 1);
    let again = bench.get_all(&bench.storage, 1).await.remove(0);
    assert_eq!(again.message.id, message.id);
    bench.update(&again.message, put_back("failed twice", 10 * MINUTE)).await.unwrap();
    let seen = look().await;
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert!(of_first(seen).is_none());
}
