//! Sessions that are lost: locks that run out, links and connections that end, answers that do not come, and
//! processes that stand still or are killed.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jobqueue::clock::ManualClock;
use jobqueue::storage::{GetMessages, PutMessage, StoreErrorKind, UpdateMessage};
use jobqueue::{Context, JobError, JobInfo, QueueName, Runtime, Storage, Worker};
use jobqueue_tests::log;
use serde_json::json;
use tokio::time::{pause, resume, sleep, timeout};

use super::jobs::{Work, work};
use super::late_answers::until;
use super::sessions::text;
use super::{Bench, ENDS, MINUTE};

#[tokio::test]
async fn an_expired_session_is_lost_and_its_message_comes_again() {
    let bench = Bench::of_sessions();
    for number in 0..2 {
        bench.put_in("a", &number.to_string()).await;
    }
    let stale = bench.next().await;
    bench.emulator.advance(2 * MINUTE);
    let other = bench.another();
    let again = bench.get_all(&other, 1).await.remove(0);
    assert_eq!(text(&again), "0");
    assert_eq!(again.dequeue_count, 2);
    let error = bench.delete(&stale.message).await.unwrap_err();
    assert!(error.is_lease_lost() && !error.is_ambiguous(), "{error:?}");
    // I5
    for change in [
        UpdateMessage::new(MINUTE).with_text("stale".to_owned()),
        UpdateMessage::new(MINUTE).with_text("stale".to_owned()).ending_lease(),
        UpdateMessage::new(Duration::ZERO),
    ] {
        let error = bench.update(&stale.message, change).await.unwrap_err();
        assert!(error.is_lease_lost() && !error.is_ambiguous(), "{error:?}");
    }
    other.queues().update(&bench.queue, &again.message, UpdateMessage::new(Duration::ZERO)).await.unwrap();
    let last = bench.next().await;
    assert_eq!(text(&last), "0");
    assert_eq!(last.dequeue_count, 3);
}

// What the service does with links for tokens that are idle is not documented.
#[tokio::test]
async fn the_end_of_the_link_for_tokens_ends_no_session() {
    let bench = Bench::of_sessions();
    bench.put_in("a", "first").await;
    let first = bench.next().await;
    bench.detach("$cbs").await;
    bench.put_in("b", "second").await;
    let second = bench.next().await;
    for leased in [first, second] {
        bench.delete(&leased.message).await.unwrap();
    }
    // A token for another queue goes over a new link.
    bench.emulator.create_queue("other", json!({}));
    let other = QueueName::new("other").unwrap();
    bench.store().put(&other, PutMessage::new("third")).await.unwrap();
    assert_eq!(bench.emulator.queue("other")["counts"]["active"], 1);
}

// The service does not count such a delivery.
#[tokio::test]
async fn a_session_whose_link_ends_is_lost_and_its_delivery_is_counted() {
    for end in ENDS {
        let bench = Bench::of_sessions();
        bench.put_in("a", "0").await;
        for delivery in 1..4 {
            let leased = bench.next().await;
            assert_eq!(text(&leased), "0", "{end}");
            assert_eq!(leased.dequeue_count, delivery, "{end}");
            assert!(bench.emulator.strike(end, None) > 0);
            let mut error = bench.delete(&leased.message).await.unwrap_err();
            if error.kind() == StoreErrorKind::Unavailable && !error.is_ambiguous() {
                // It has heard of the end just now, before it could send anything.
                error = bench.delete(&leased.message).await.unwrap_err();
            }
            // The client may not have heard of the end yet.
            assert!(error.is_lease_lost() || error.is_ambiguous(), "{end}: {error:?}");
        }
        let last = bench.next().await;
        assert_eq!(last.dequeue_count, 4, "{end}");
        bench.delete(&last.message).await.unwrap();
        assert_eq!(bench.count("active"), 0, "{end}");
    }
}

// I20, round 31, ops B2
#[tokio::test]
async fn log_of_a_lost_session_shows_no_key() {
    const KEY: &str = "s3cret-customer";
    let log = log::record();
    let bench = Bench::of_sessions();
    for number in 0..2 {
        bench.put_in(KEY, &number.to_string()).await;
    }
    let first = bench.next().await;
    let fault = bench.emulator.plant("deliver", "abort");
    bench.delete(&first.message).await.unwrap();
    until(|| fault.hits() == 1).await;
    assert_eq!(text(&bench.next().await), "1");
    let log = log.text();
    assert!(log.contains("a session of Service Bus was lost"), "{log}");
    let shown = log.lines().find(|line| line.contains("jobqueue") && line.contains(KEY));
    assert!(shown.is_none(), "{shown:?}");
}

// The dead connection was asked for ever, and answered with an error that promised that trying again helps.
#[tokio::test]
async fn a_session_whose_connection_ends_cannot_be_renewed() {
    for end in ["close-connection", "abort"] {
        let bench = Bench::of_sessions();
        bench.put_in("a", "0").await;
        let leased = bench.next().await;
        assert!(bench.emulator.strike(end, None) > 0);
        let refused = async {
            loop {
                let error = bench.update(&leased.message, UpdateMessage::new(MINUTE)).await.unwrap_err();
                if !error.is_retryable() {
                    return error;
                }
            }
        };
        let error = timeout(MINUTE / 2, refused).await.expect("the renewal fails for ever");
        assert!(error.is_lease_lost(), "{end}: {error:?}");
    }
}

// Its sessions were released under their handlers, which went on beside their successors.
#[tokio::test]
async fn a_get_that_finds_no_queue_releases_no_session_under_a_message() {
    let bench = Bench::of_sessions();
    bench.put_in("a", "0").await;
    let leased = bench.next().await;
    let revoked = bench.store().lease_revoked(&bench.queue, &leased.message).unwrap();
    for condition in ["amqp:not-found", "amqp:not-allowed"] {
        let fields = json!({ "entity": "work", "condition": condition, "times": null });
        let fault = bench.emulator.plant_with("attach-receiver", "error", fields);
        bench.store().get(&bench.queue, GetMessages::new(1, MINUTE)).await.unwrap_err();
        fault.remove();
    }
    pause();
    timeout(MINUTE / 4, revoked).await.expect_err("the session was released");
    resume();
    bench.delete(&leased.message).await.unwrap();
    assert_eq!(bench.count("active"), 0);
}

// Its lock is over, and the service does not say so.
#[tokio::test]
async fn a_handler_hears_that_its_session_was_released_because_nothing_renewed_it() {
    let bench = Bench::of_sessions_with(json!({ "LockDuration": "PT5S" }));
    bench.put_in("a", "0").await;
    let leased = bench.next().await;
    let revoked = bench.store().lease_revoked(&bench.queue, &leased.message).unwrap();
    pause();
    // Less than an idle connection lives.
    timeout(MINUTE / 2, revoked).await.expect("it does not hear of it");
}

// The client waited for the peer's word of the end of the WebSocket before it told of the end of the
// connection.
#[tokio::test]
async fn a_web_socket_that_falls_silent_is_a_lost_session() {
    let bench = Bench::of_sessions_with(json!({ "LockDuration": "PT5M" }));
    let options = super::options(&bench.emulator).web_socket(true);
    let storage = Storage::from(options.with_blobs_of(&bench.blobs).unwrap());
    bench.put_in("a", "0").await;
    let leased = bench.get_all(&storage, 1).await.remove(0);
    let revoked = storage.queues().lease_revoked(&bench.queue, &leased.message).unwrap();
    assert!(bench.emulator.strike("freeze", None) > 0);
    pause();
    // Less than the lock lasts.
    timeout(3 * MINUTE, revoked).await.expect("it does not hear of it");
}

// Each counted, so that the service itself dead-lettered a job that snoozed for long.
#[tokio::test]
async fn a_put_back_in_a_session_is_no_delivery_for_the_service() {
    let bench = Bench::with(json!({ "RequiresSession": true, "MaxDeliveryCount": 2 }), &[]);
    bench.put_in("a", "0").await;
    for delivery in 1..5 {
        let leased = bench.get_all(&bench.storage, 1).await.remove(0);
        assert_eq!(leased.dequeue_count, delivery);
        let wait = Duration::from_millis(if delivery % 2 == 0 { 0 } else { 20 });
        bench.update(&leased.message, UpdateMessage::new(wait).ending_lease()).await.unwrap();
        assert_eq!(bench.count("deadLetters"), 0, "after {delivery}");
    }
}

// The hold of a session was measured by the wall clock.
#[tokio::test]
async fn a_clock_that_is_put_forward_releases_no_session() {
    let bench = Bench::of_sessions();
    let clock = Arc::new(ManualClock::at(SystemTime::now()));
    let options = super::options(&bench.emulator).runtime(Runtime::new().with_clock(clock.clone()));
    let storage = Storage::from(options.with_blobs_of(&bench.blobs).unwrap());
    bench.put_in("a", "0").await;
    let leased = bench.get_all(&storage, 1).await.remove(0);
    let revoked = storage.queues().lease_revoked(&bench.queue, &leased.message).unwrap();
    clock.advance(MINUTE);
    pause();
    timeout(MINUTE / 2, revoked).await.expect_err("it was released long before the end of its lock");
    resume();
    storage.queues().delete(&bench.queue, &leased.message, Default::default()).await.unwrap();
}

// Two runs of a job never have the same fence.
#[tokio::test]
async fn a_delivery_that_followed_another_is_counted() {
    let bench = Bench::of_sessions();
    for number in 0..2 {
        bench.put_in("a", &number.to_string()).await;
    }
    let first = bench.next().await;
    bench.delete(&first.message).await.unwrap();
    let second = bench.next().await;
    assert_eq!(text(&second), "1");
    assert_eq!(second.dequeue_count, 1);
    assert!(bench.emulator.strike("abort", None) > 0);
    let again = bench.next().await;
    assert_eq!(text(&again), "1");
    assert_eq!(again.dequeue_count, 2);
}

// I9: long before the lock would have ended.
#[tokio::test]
async fn a_handler_hears_that_its_session_is_lost_with_the_link() {
    let bench = Bench::of_sessions();
    bench.storage.queue::<Work>().await.unwrap().send(&work("held")).key("a").in_order().await.unwrap();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |_: Work, info: JobInfo, context: Context| {
        let tell = tell.clone();
        async move {
            tell.send(info.dequeue_count).unwrap();
            if info.dequeue_count == 1 {
                context.token().cancelled().await;
                tell.send(0).unwrap();
            }
            Ok::<(), JobError>(())
        }
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = Worker::builder(bench.storage.clone()).handle(handler).build().unwrap();
    let running = tokio::spawn(worker.run_until(async { drop(stopped.await) }));
    assert_eq!(told.recv().await, Some(1));
    assert!(bench.emulator.strike("detach", Some("work")) > 0);
    for expected in [0, 2] {
        let heard = timeout(MINUTE / 2, told.recv()).await.expect("the handler does not hear of it");
        assert_eq!(heard, Some(expected));
    }
    stop.send(()).unwrap();
    drop(running.await.unwrap().unwrap());
}

// B2
#[tokio::test]
async fn a_lost_answer_to_a_completion_lets_the_next_of_the_session_come() {
    for end in ENDS {
        let bench = Bench::of_sessions();
        for number in 0..2 {
            bench.put_in("a", &number.to_string()).await;
        }
        let first = bench.next().await;
        let fault = bench.emulator.plant("complete", end);
        let error = bench.delete(&first.message).await.unwrap_err();
        assert!(error.is_ambiguous() && error.is_retryable(), "{end}: {error:?}");
        assert_eq!(fault.hits(), 1);
        let error = bench.delete(&first.message).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::LeaseExpired, "{end}");
        assert!(!error.is_ambiguous(), "{end}");
        assert_eq!(text(&bench.next().await), "1", "{end}");
    }
}

#[tokio::test]
async fn a_busy_service_is_told_when_a_session_is_asked_for() {
    let bench = Bench::of_sessions();
    bench.put_in("a", "0").await;
    assert!(bench.store().orders_groups(&bench.queue).await.unwrap());
    bench.emulator.plant_with("attach-receiver", "busy", json!({ "entity": "work" }));
    let options = GetMessages::new(1, MINUTE);
    let error = bench.store().get(&bench.queue, options).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Throttled, "{error:?}");
    assert_eq!(text(&bench.next().await), "0");
}

// A process that was stopped keeps its connection, and loses its session with the lock.
#[tokio::test]
async fn a_session_of_a_process_that_stands_still_is_free_after_its_lock() {
    let bench = Bench::of_sessions();
    bench.put_in("a", "0").await;
    let leased = bench.next().await;
    assert!(bench.emulator.strike("freeze", None) > 0);
    let other = bench.another();
    let none = other.queues().get(&bench.queue, GetMessages::new(1, MINUTE)).await.unwrap();
    assert!(none.messages.is_empty(), "the session is held");
    bench.emulator.advance(2 * MINUTE);
    let again = bench.get_all(&other, 1).await.remove(0);
    assert_eq!(again.message.id, leased.message.id);
    assert_eq!(again.dequeue_count, 2);
    other.queues().delete(&bench.queue, &again.message, Default::default()).await.unwrap();
}

#[tokio::test]
async fn a_held_session_outlives_its_tokens() {
    let bench = Bench::of_sessions();
    let options = super::options(&bench.emulator).token_validity(Duration::from_secs(4));
    let storage = Storage::from(options.with_blobs_of(&bench.blobs).unwrap());
    bench.put_in("a", "0").await;
    let leased = bench.get_all(&storage, 1).await.remove(0);
    let tokens = || bench.emulator.calls("put-token", "$cbs", 0);
    let before = tokens();
    let waiting = async {
        // Those of two connections; the third of each is sent when the first has run out.
        while tokens() < before + 6 {
            sleep(Duration::from_millis(100)).await;
            let _ = storage.queues().update(&bench.queue, &leased.message, UpdateMessage::new(MINUTE)).await;
        }
    };
    timeout(2 * MINUTE, waiting).await.expect("the tokens are not renewed");
    storage.queues().delete(&bench.queue, &leased.message, Default::default()).await.unwrap();
    assert_eq!(bench.count("active"), 0);
}

#[tokio::test]
async fn an_answer_to_a_send_that_is_lost_is_one_message_of_the_session() {
    let bench = Bench::of_sessions_with(json!({ "RequiresDuplicateDetection": true }));
    for end in ENDS {
        bench.emulator.plant("send", end);
        let message = || PutMessage::new(end).with_job("/test", end).with_group("a".to_owned());
        while let Err(error) = bench.put(message()).await {
            assert!(error.is_retryable(), "{end}: {error:?}");
        }
    }
    for end in ENDS {
        let next = bench.next().await;
        assert_eq!(text(&next), end);
        bench.delete(&next.message).await.unwrap();
    }
    assert_eq!(bench.count("active"), 0);
}
