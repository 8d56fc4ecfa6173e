//! Dead letters in the dead-letter queue that the service has for each queue.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jobqueue::Runtime;
use jobqueue::clock::ManualClock;
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::sharded::Sharded;
use jobqueue::storage::{
    ContainerName, DeadLetterCause, DeadLetterMessage, GetMessages, Operation, PutMessage, StoreErrorKind,
    UpdateMessage,
};
use jobqueue::{JobError, Queue, QueueName, Reason, Storage, Worker};
use jobqueue_admin::{AccessLevel, Admin, DeadLetterFilter};
use jobqueue_test_support::servicebus::is_excluded;
use jobqueue_testing::faults::{Fault, Faulty};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::forged::SEND;
use super::jobs::{Work, kill, work};
use super::{Bench, ENDS, MINUTE, options, python};

impl Bench {
    /// Returns the dead letters as the service has them.
    pub(super) fn letters(&self) -> Vec<Value> {
        let shown = self.emulator.queue("work%2F$DeadLetterQueue");
        shown["messages"].as_array().unwrap().clone()
    }

    async fn work(&self) -> Queue<Work> {
        self.storage.queue::<Work>().await.unwrap()
    }

    pub(super) async fn dead_letter(&self, name: &str, why: &'static str) {
        let queue = self.work().await;
        queue.send(&work(name)).await.unwrap();
        kill(&queue, why).await;
    }
}

// It came again at once, some thousand times a second, and made a whole page of a peek unreadable.
#[tokio::test]
async fn a_message_that_cannot_be_decoded_is_a_dead_letter_and_hides_no_other() {
    if is_excluded("dead_letters::a_message_that_cannot_be_decoded_is_a_dead_letter_and_hides_no_other") {
        return;
    }
    let bench = Bench::new();
    bench.emulator.plant("send", "garble");
    for text in ["garbled", "good"] {
        bench.put(PutMessage::new(text)).await.unwrap();
    }
    let peeked = bench.store().peek(&bench.queue, 10).await.unwrap();
    assert_eq!(peeked.len(), 2);
    assert!(peeked[0].text.is_err());
    assert_eq!(peeked[1].text.as_deref(), Ok("good"));
    let got = async {
        loop {
            if let Some(got) = bench.get().await {
                return got;
            }
        }
    };
    assert_eq!(timeout(MINUTE, got).await.unwrap().text.as_deref(), Ok("good"));
    assert_eq!(bench.count("deadLetters"), 1);
    let letters = bench.store().peek(&bench.queue.dead_letter().unwrap(), 10).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert!(letters[0].text.is_err());
    assert_eq!(letters[0].dead.as_ref().unwrap().reason.as_str(), "undecodable");
}

// The get of the only slot was answered with nothing, which counted as an empty queue.
#[tokio::test]
async fn a_worker_until_idle_goes_on_behind_a_message_that_cannot_be_decoded() {
    if is_excluded("dead_letters::a_worker_until_idle_goes_on_behind_a_message_that_cannot_be_decoded") {
        return;
    }
    let bench = Bench::new();
    let queue = bench.storage.queue::<Work>().await.unwrap();
    bench.emulator.plant("send", "garble");
    for name in ["garbled", "good"] {
        queue.send(&work(name)).await.unwrap();
    }
    let handler = |_: Work| async { Ok::<(), JobError>(()) };
    let worker = Worker::builder(bench.storage.clone()).concurrency(1).handle(handler);
    assert_eq!(worker.build().unwrap().run_until_idle().await.unwrap().completed, 1);
}

// The service takes 64 KiB for all properties of a message; the letter was refused, and the job came again
// and again.
#[tokio::test]
async fn a_message_with_large_properties_becomes_a_dead_letter() {
    let text = "z".repeat(20_000);
    for size in [55_000, 65_000, 65_380] {
        let bench = Bench::new();
        let properties = json!({ "a": "x".repeat(size / 2), "b": "y".repeat(size / 2) });
        python::run(bench.emulator.connection_string(), SEND, &[&properties.to_string(), "text"]);
        let leased = bench.get().await.unwrap();
        bench.update(&leased.message, UpdateMessage::new(MINUTE).with_text("old".to_owned())).await.unwrap();
        let cause = DeadLetterCause::new("rejected").with_description(Some("é".repeat(5_000)));
        let letter = DeadLetterMessage::new(text.clone(), cause);
        bench.store().dead_letter(&bench.queue, &leased.message, letter).await.unwrap();
        let letters = bench.store().peek(&bench.queue.dead_letter().unwrap(), 10).await.unwrap();
        assert_eq!(letters[0].text.as_deref(), Ok(&*text), "{size}");
    }
}

// The second call found no message, which after a lost answer means that the first has ended it. What
// belonged to the former text was deleted.
#[tokio::test]
async fn text_of_a_dead_letter_without_room_for_it_is_written_again() {
    let bench = Bench::new();
    // Quiet: the emulator is asked in real time.
    let blobs = Faulty::quiet(&bench.blobs);
    let storage = Storage::from(options(&bench.emulator).with_blobs_of(blobs.storage()).unwrap());
    storage.queues().put(&bench.queue, PutMessage::new("text")).await.unwrap();
    let leased = bench.get_from(&storage).await.unwrap();
    let text = "z".repeat(30_000);
    let letter = DeadLetterMessage::new(text.clone(), DeadLetterCause::new("rejected"));
    blobs.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Throttled));
    for _ in 0..2 {
        let error =
            storage.queues().dead_letter(&bench.queue, &leased.message, letter.clone()).await.unwrap_err();
        assert!(error.is_ambiguous() && !error.is_lease_lost(), "{error:?}");
    }
    blobs.heal();
    storage.queues().dead_letter(&bench.queue, &leased.message, letter).await.unwrap();
    let letters = storage.queues().peek(&bench.queue.dead_letter().unwrap(), 10).await.unwrap();
    assert_eq!(letters[0].text.as_deref(), Ok(&*text));
}

#[tokio::test]
async fn a_former_shard_with_dead_letters_is_not_retired() {
    let bench = Bench::new();
    let open = |storage: &Storage| {
        Sharded::builder().account("a", storage.clone()).shards("work", 2).build().unwrap()
    };
    let sharded = open(&bench.storage);
    let storage = Storage::from(sharded.stores());
    storage.queues().create_queue(&bench.queue, &Default::default()).await.unwrap();
    for number in 0..4 {
        storage.queues().put(&bench.queue, PutMessage::new(number.to_string())).await.unwrap();
        let leased = bench.get_from(&storage).await.unwrap();
        let letter = DeadLetterMessage::new("dead", DeadLetterCause::new("rejected"));
        storage.queues().dead_letter(&bench.queue, &leased.message, letter).await.unwrap();
    }
    let dead = bench.queue.dead_letter().unwrap();
    sharded.reshard(&bench.queue, 3).await.unwrap();
    let clock = Arc::new(ManualClock::at(SystemTime::now() + MINUTE * 60));
    let later = bench.storage.clone().with_runtime(Runtime::new().with_clock(clock));
    assert_eq!(open(&later).retire(&bench.queue).await.unwrap(), 2);
    assert_eq!(storage.queues().peek(&dead, 32).await.unwrap().len(), 4);
}

#[tokio::test]
async fn a_dead_letter_goes_to_the_services_queue_with_its_reason() {
    let bench = Bench::new();
    bench.dead_letter("bad", "no such address").await;
    let letters = bench.letters();
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert_eq!(letters[0]["properties"]["DeadLetterReason"], "rejected");
    assert_eq!(letters[0]["properties"]["DeadLetterErrorDescription"], "no such address");
    assert_eq!(bench.count("active"), 0);
    let dead = bench.work().await.dead_letters().unwrap();
    assert_eq!(dead.approximate_len().await.unwrap(), 1);
    for letters in [dead.peek().await.unwrap(), dead.list().await.unwrap().letters] {
        let letter = &letters[0];
        assert_eq!(&letter.reason, &Reason::REJECTED);
        assert_eq!(letter.error.as_deref(), Some("no such address"));
        assert_eq!(letter.attempts, 1);
        assert_eq!(letter.deliveries, 1);
        assert_eq!(letter.queue.as_str(), "work");
        assert_eq!(dead.message(letter).await.unwrap().name, "bad");
    }
}

#[tokio::test]
async fn a_redriven_dead_letter_has_all_its_attempts_and_leaves_no_blob() {
    let bench = Bench::new();
    bench.dead_letter("bad", "no").await;
    let queue = bench.work().await;
    let report = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(report.moved.len(), 1, "{report:?}");
    assert_eq!(report.left, 0, "{report:?}");
    assert_eq!(bench.letters().len(), 0);
    assert_eq!(bench.count("active"), 1);
    let again = queue.receive(Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(again.message().name.as_str(), "bad");
    assert_eq!(again.info().attempt, 1);
    again.dead_letter(Reason::REJECTED, "still no").await.unwrap();
    let dead = queue.dead_letters().unwrap();
    let letter = &dead.peek().await.unwrap()[0];
    assert_eq!(letter.past.len(), 1);
    assert_eq!(letter.error.as_deref(), Some("still no"));
    assert_eq!(dead.purge(DeadLetterOptions::new().filter(|_| true)).await.unwrap().deleted.len(), 1);
    assert_eq!(bench.letters().len(), 0);
    assert_eq!(bench.texts().await.len(), 0);
}

#[tokio::test]
async fn dead_letters_of_the_service_are_in_the_same_list() {
    let settings = json!({ "MaxDeliveryCount": 1, "DeadLetteringOnMessageExpiration": true });
    let bench = Bench::with(settings, &[]);
    let queue = bench.work().await;
    queue.send(&work("poison")).await.unwrap();
    let leased = bench.get().await.unwrap();
    bench.update(&leased.message, UpdateMessage::new(Duration::ZERO)).await.unwrap();
    queue.send(&work("late")).ttl(MINUTE).await.unwrap();
    bench.emulator.advance(MINUTE * 2);
    bench.dead_letter("bad", "no").await;
    let dead = queue.dead_letters().unwrap();
    let mut found = Vec::new();
    for letter in dead.list().await.unwrap().letters {
        let name = dead.message(&letter).await.unwrap().name;
        assert!(letter.time.is_some() && letter.error.is_some(), "{letter:?}");
        found.push((letter.reason.to_string(), name));
    }
    found.sort();
    let pair = |reason: &str, name: &str| (reason.to_owned(), name.to_owned());
    let expected = [
        pair("max_delivery_count_exceeded", "poison"),
        pair("rejected", "bad"),
        pair("ttl_expired_exception", "late"),
    ];
    assert_eq!(found, expected);
    let options = DeadLetterOptions::new().filter(|letter| letter.reason == "max_delivery_count_exceeded");
    assert_eq!(dead.redrive(options).await.unwrap().moved.len(), 1);
    assert_eq!(bench.get().await.unwrap().dequeue_count, 1);
    let expired = DeadLetterOptions::new().filter(|letter| letter.reason == "ttl_expired_exception");
    let purged = dead.purge(expired).await.unwrap();
    assert_eq!(purged.deleted.len(), 1);
    assert_eq!(bench.letters().len(), 1);
}

#[tokio::test]
async fn the_operator_sees_and_redrives_them() {
    let bench = Bench::new();
    bench.dead_letter("bad", "no").await;
    let admin = Admin::builder(bench.storage.clone()).access(AccessLevel::Operate).build();
    let names: Vec<_> = admin.queue_names().await.unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["work"]);
    assert_eq!(admin.queue("work").await.unwrap().dead_letters, Some(1));
    let listed = bench.store().list_queues("").await.unwrap();
    assert_eq!(listed.iter().map(QueueName::as_str).collect::<Vec<_>>(), ["work", "work-poison"]);
    let page = admin.dead_letters("work", &DeadLetterFilter::new().reason("rejected")).await.unwrap();
    assert_eq!(page.letters.len(), 1);
    assert!(page.complete);
    let found = admin.search_dead_letters("work", &DeadLetterFilter::new(), 10).await.unwrap();
    assert_eq!(found.letters[0].dead.as_ref().unwrap().reason.as_str(), "rejected");
    assert!(found.complete);
}

#[tokio::test]
async fn a_large_dead_letter_keeps_its_payload() {
    let bench = Bench::new();
    let name = "x".repeat(200_000);
    bench.dead_letter(&name, "too long").await;
    let queue = bench.work().await;
    let dead = queue.dead_letters().unwrap();
    let letter = &dead.peek().await.unwrap()[0];
    assert_eq!(dead.message(letter).await.unwrap().name, name);
    assert_eq!(dead.redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1);
    let again = queue.receive(Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(again.message().name, name);
    again.complete().await.unwrap();
    let container = ContainerName::new("jobqueue-payloads").unwrap();
    let left = bench.blobs.blobs().list_blobs(&container, "", None).await.unwrap();
    assert!(left.blobs.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_checkpoint_survives_the_services_own_dead_lettering() {
    let bench = Bench::with(json!({ "MaxDeliveryCount": 1 }), &[]);
    let leased = bench.leased("first").await;
    bench.update(&leased.message, UpdateMessage::new(MINUTE).with_text("second".to_owned())).await.unwrap();
    bench.emulator.advance(MINUTE);
    let dead = bench.queue.dead_letter().unwrap();
    let letter = bench.store().peek(&dead, 1).await.unwrap().remove(0);
    assert_eq!(letter.text.as_deref(), Ok("second"));
    assert_eq!(letter.dead.unwrap().reason.as_str(), "MaxDeliveryCountExceeded");
}

fn letter() -> DeadLetterMessage {
    let cause = DeadLetterCause::new("rejected").with_description("why".to_owned());
    DeadLetterMessage::new("dead text", cause)
}

// B2
#[tokio::test]
async fn a_lost_answer_to_dead_lettering_is_ambiguous_and_leaves_one_letter() {
    for end in ENDS {
        for performed in [true, false] {
            let bench = Bench::new();
            let leased = bench.leased("text").await;
            bench.emulator.plant_with("dead-letter", end, json!({ "performed": performed }));
            let dead_letter = || bench.store().dead_letter(&bench.queue, &leased.message, letter());
            let error = dead_letter().await.unwrap_err();
            assert!(error.is_ambiguous() && error.is_retryable(), "{end}: {error:?}");
            let again = loop {
                match dead_letter().await {
                    Err(error) if error.is_retryable() => {}
                    other => break other,
                }
            };
            let kind = again.err().map(|error| error.kind());
            assert_eq!(kind, performed.then_some(StoreErrorKind::LeaseExpired), "{end}");
            assert_eq!(bench.letters().len(), 1, "{end}");
            assert_eq!(bench.count("active"), 0, "{end}");
            let dead = bench.queue.dead_letter().unwrap();
            let text = bench.store().peek(&dead, 1).await.unwrap().remove(0).text;
            assert_eq!(text.as_deref(), Ok("dead text"), "{end}: the letter lost its text");
        }
    }
}

#[tokio::test]
async fn a_refused_dead_lettering_leaves_the_message() {
    let bench = Bench::new();
    let leased = bench.leased("text").await;
    bench.emulator.plant("dead-letter", "busy");
    let error = bench.store().dead_letter(&bench.queue, &leased.message, letter()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Throttled, "{error:?}");
    assert!(!error.is_ambiguous(), "{error:?}");
    assert_eq!(bench.letters().len(), 0);
    // By management, because the link has given the delivery up.
    bench.store().dead_letter(&bench.queue, &leased.message, letter()).await.unwrap();
    assert_eq!(bench.letters()[0]["properties"]["DeadLetterReason"], "rejected");
}

#[tokio::test]
async fn a_stale_holder_cannot_dead_letter() {
    let bench = Bench::new();
    let stale = bench.leased("text").await;
    bench.emulator.advance(MINUTE);
    let error = bench.store().dead_letter(&bench.queue, &stale.message, letter()).await.unwrap_err();
    assert!(error.is_lease_lost() && !error.is_ambiguous(), "{error:?}");
    assert_eq!(bench.letters().len(), 0);
    assert_eq!(bench.count("active"), 1);
}

// I12
#[tokio::test]
async fn a_redrive_with_lost_answers_keeps_one_job() {
    for end in ENDS {
        let bench = Bench::new();
        bench.dead_letter("bad", "no").await;
        bench.emulator.plant_with("complete", end, json!({ "entity": "work/$DeadLetterQueue" }));
        let queue = bench.work().await;
        let dead = queue.dead_letters().unwrap();
        let report = dead.redrive(DeadLetterOptions::new()).await.unwrap();
        // A lock that is lost after a lost answer does not show whether the letter is gone.
        assert_eq!(report.moved.len() + report.skipped.len(), 1, "{end}: {report:?}");
        assert!(report.skipped.iter().all(|letter| letter.maybe_moved), "{end}: {report:?}");
        assert_eq!(bench.letters().len(), 0, "{end}");
        assert_eq!(bench.count("active"), 1, "{end}");
    }
}

#[tokio::test]
async fn put_into_a_dead_letter_queue_is_refused() {
    let bench = Bench::new();
    let dead = bench.queue.dead_letter().unwrap();
    let error = bench.store().put(&dead, PutMessage::new("text")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported);
    assert!(!error.is_ambiguous());
    assert!(bench.store().get(&dead, GetMessages::new(1, MINUTE)).await.unwrap().messages.is_empty());
}

#[tokio::test]
async fn a_worker_whose_dead_lettering_gets_no_answer_does_it_once() {
    for end in ["detach", "abort"] {
        let bench = Bench::new();
        bench.work().await.send(&work("bad")).await.unwrap();
        bench.emulator.plant("dead-letter", end);
        let handler = |_: Work| async { Err::<(), JobError>(JobError::dead_letter("no")) };
        let worker = Worker::builder(bench.storage.clone()).max_idle_delay(Duration::from_millis(200));
        let report = worker.handle(handler).build().unwrap().run_until_idle().await.unwrap();
        assert_eq!(report.dead_lettered, 1, "{end}: {report:?}");
        assert_eq!(bench.letters().len(), 1, "{end}");
        assert_eq!(bench.count("active"), 0, "{end}");
    }
}
