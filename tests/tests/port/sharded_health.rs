//! Shards that are slow, throttled or not asked: they do not hold up the others.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use jobqueue::settings::Metadata;
use jobqueue::sharded::Sharded;
use jobqueue::storage::{GetMessages, Operation, PutMessage, StoreErrorKind};
use jobqueue::{QueueName, Storage, memory};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::faults::pauses;
use tokio::time::Instant;

use super::sharded::{LONG, texts};

/// Throttles a shard as long as the first value says so. The second counts how often it was asked.
fn throttle(faulty: &Faulty, shard: &QueueName) -> (Arc<AtomicBool>, Arc<AtomicU32>) {
    let throttled = Arc::new(AtomicBool::new(true));
    let asked = Arc::new(AtomicU32::new(0));
    for operation in [Operation::Put, Operation::Get] {
        let (throttled, asked, slow) = (Arc::clone(&throttled), Arc::clone(&asked), shard.to_string());
        faulty.on(operation, move |call| {
            let refused = call.subject == slow && throttled.load(Ordering::SeqCst);
            refused.then(|| {
                asked.fetch_add(1, Ordering::SeqCst);
                match operation {
                    // What it gave away without telling would be hidden until the end of this test.
                    Operation::Get => Fault::LoseRequest(StoreErrorKind::Throttled),
                    _ => Fault::Refuse(StoreErrorKind::Throttled),
                }
            })
        });
    }
    (throttled, asked)
}

/// F86: a throttled shard is left alone, and does not delay the others.
#[tokio::test(start_paused = true)]
async fn throttled_shard_does_not_slow_the_others() {
    let account = memory::open();
    let faulty = Faulty::new(&account);
    let sharded = Sharded::builder().shards("work", 4).account("a", faulty.storage()).build().unwrap();
    let (storage, queue) = (Storage::from(sharded.stores()), QueueName::new("work").unwrap());
    storage.queues().create_queue(&queue, &Metadata::new()).await.unwrap();
    let shards = account.queues().list_queues("work-s").await.unwrap();
    let slow = shards.last().unwrap().clone();
    // Has work of its own, which must wait and nothing else.
    let mut puts = 0..;
    while account.queues().queue_properties(&slow).await.unwrap().approximate_count == 0 {
        storage.queues().put(&queue, PutMessage::new(puts.next().unwrap().to_string())).await.unwrap();
    }
    let before = puts.next().unwrap();

    let (throttled, asked) = throttle(&faulty, &slow);
    let begun = Instant::now();
    for n in before..before + 200 {
        // What a busy storage may have stored is sent again, as a sender does.
        while let Err(error) = storage.queues().put(&queue, PutMessage::new(n.to_string())).await {
            assert!(error.is_ambiguous(), "{error}");
        }
    }
    let mut found = HashSet::new();
    let all = (before + 200) as usize;
    while found.len() < all - 1 {
        let got = storage.queues().get(&queue, GetMessages::new(32, LONG)).await.unwrap().messages;
        assert!(!got.is_empty(), "the others have more: {} of {all}", found.len());
        found.extend(got.into_iter().map(|message| message.text.unwrap()));
    }
    let calls: Vec<_> = faulty.calls().into_iter().filter(|call| call.at >= begun).collect();
    assert_eq!(pauses(&calls), Vec::<Duration>::new(), "nobody waited for the throttled shard");
    // After a quarter of a second, and then after pauses that double.
    assert!(begun.elapsed() < Duration::from_secs(16), "{:?}", begun.elapsed());
    assert!(asked.load(Ordering::SeqCst) <= 6, "asked {asked:?} times while it wanted to be left alone");

    // Inspected after again when it serves, and not asked all the time meanwhile.
    let poll = || async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        storage.queues().get(&queue, GetMessages::new(32, LONG)).await.unwrap().messages
    };
    for _ in 0..300 {
        assert!(poll().await.is_empty());
    }
    assert!(asked.load(Ordering::SeqCst) <= 10, "asked {asked:?} times in 30 s");
    throttled.store(false, Ordering::SeqCst);
    for _ in 0..310 {
        found.extend(poll().await.into_iter().map(|message| message.text.unwrap()));
    }
    assert_eq!(found, texts(0..before + 200));
}

/// F86: a shard that does not answer delays the others briefly, then not at all for a while.
#[tokio::test(start_paused = true)]
async fn unresponsive_shard_is_avoided() {
    let account = memory::open();
    let faulty = Faulty::new(&account);
    let sharded = Sharded::builder().shards("work", 4).account("a", faulty.storage()).build().unwrap();
    let (storage, queue) = (Storage::from(sharded.stores()), QueueName::new("work").unwrap());
    storage.queues().create_queue(&queue, &Metadata::new()).await.unwrap();
    faulty.on(Operation::Get, |call| (call.subject == "work-s2v1").then_some(Fault::Hang));
    for n in 0..400 {
        storage.queues().put(&queue, PutMessage::new(n.to_string())).await.unwrap();
    }
    let begun = Instant::now();
    let mut found = HashSet::new();
    while found.len() < 300 {
        let options = GetMessages::new(8, LONG);
        let got = storage.queues().get(&queue, options).await.unwrap().messages;
        assert!(!got.is_empty(), "the others have more");
        found.extend(got.into_iter().map(|message| message.text.unwrap()));
    }
    let calls: Vec<_> = faulty.calls().into_iter().filter(|call| call.at >= begun).collect();
    assert!(pauses(&calls).iter().sum::<Duration>() < Duration::from_secs(6), "{:?}", pauses(&calls));
}

/// F86: a shard that does not answer puts delays one of them for each of its pauses.
// round 30, storages 2: it got its turn again and again.
#[tokio::test(start_paused = true)]
async fn shard_that_answers_no_put_is_avoided() {
    let account = memory::open();
    let faulty = Faulty::new(&account);
    let sharded = Sharded::builder().shards("work", 4).account("a", faulty.storage()).build().unwrap();
    let (storage, queue) = (Storage::from(sharded.stores()), QueueName::new("work").unwrap());
    storage.queues().create_queue(&queue, &Metadata::new()).await.unwrap();
    faulty.on(Operation::Put, |call| (call.subject == "work-s2v1").then_some(Fault::Hang));
    let begun = Instant::now();
    let mut failed = 0;
    for n in 0..40 {
        failed += u32::from(storage.queues().put(&queue, PutMessage::new(n.to_string())).await.is_err());
    }
    assert_eq!(failed, 1);
    assert!(begun.elapsed() < Duration::from_secs(70), "{:?}", begun.elapsed());
}

// review of round 30, B3: after each pause all of them waited for it.
#[tokio::test(start_paused = true)]
async fn shard_that_answers_no_put_is_tried_by_one_sender_at_a_time() {
    const SECOND: Duration = Duration::from_secs(1);
    let account = memory::open();
    let faulty = Faulty::new(&account);
    let sharded = Sharded::builder().shards("work", 4).account("a", faulty.storage()).build().unwrap();
    let (storage, queue) = (Storage::from(sharded.stores()), QueueName::new("work").unwrap());
    storage.queues().create_queue(&queue, &Metadata::new()).await.unwrap();
    faulty.on(Operation::Put, |call| (call.subject == "work-s2v1").then_some(Fault::Hang));
    let end = Instant::now() + 300 * SECOND;
    let senders = (0..20).map(|_| async {
        let mut failed = 0;
        while Instant::now() < end {
            failed += u32::from(storage.queues().put(&queue, PutMessage::new("text")).await.is_err());
            tokio::time::sleep(SECOND).await;
        }
        failed
    });
    let failed: u32 = futures_util::future::join_all(senders).await.into_iter().sum();
    assert!(failed <= 20 + 12, "each sender once, and then one for each half minute: {failed}");
}

// round 30, storages 3: the list was tried for four minutes.
#[tokio::test(start_paused = true)]
async fn list_is_given_up_while_no_shard_answers() {
    let account = memory::open();
    let faulty = Faulty::new(&account);
    let sharded = Sharded::builder().shards("work", 4).account("a", faulty.storage()).build().unwrap();
    let (storage, queue) = (Storage::from(sharded.stores()), QueueName::new("work").unwrap());
    storage.queues().create_queue(&queue, &Metadata::new()).await.unwrap();
    faulty.plan_always(Operation::Put, Fault::Hang);
    let begun = Instant::now();
    let answers = storage.queues().put_all(&queue, vec![PutMessage::new("text"); 128].into()).await;
    assert!(begun.elapsed() < Duration::from_secs(65), "{:?}", begun.elapsed());
    let errors = || answers.iter().map(|answer| answer.as_ref().unwrap_err());
    assert_eq!(errors().filter(|error| error.is_ambiguous()).count(), faulty.calls_of(Operation::Put));
    assert!(errors().all(|error| error.is_retryable()));
}

/// A queue of four shards. Senders without a key put for five minutes, one message a second each, beginning
/// one after the other.
struct Senders {
    account: Storage,
    faulty: Faulty,
    storage: Storage,
    queue: QueueName,
    begun: Instant,
}

impl Senders {
    const SLOW: &str = "work-s2v1";
    const TIME: Duration = Duration::from_secs(300);

    async fn new() -> Self {
        let account = memory::open();
        let faulty = Faulty::new(&account);
        let sharded = Sharded::builder().shards("work", 4).account("a", faulty.storage()).build().unwrap();
        let (storage, queue) = (Storage::from(sharded.stores()), QueueName::new("work").unwrap());
        storage.queues().create_queue(&queue, &Metadata::new()).await.unwrap();
        Self { account, faulty, storage, queue, begun: Instant::now() }
    }

    /// Sends, and returns when puts failed, in order.
    async fn send(&self, senders: u32) -> Vec<Instant> {
        let senders = (0..senders).map(|number| async move {
            let mut failed = Vec::new();
            tokio::time::sleep(number * Duration::from_secs(1) / senders).await;
            while self.begun.elapsed() < Self::TIME {
                if self.storage.queues().put(&self.queue, PutMessage::new("sent")).await.is_err() {
                    failed.push(Instant::now());
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            failed
        });
        let mut failed = futures_util::future::join_all(senders).await.concat();
        failed.sort();
        failed
    }

    /// Gets at most 32 messages, and returns their texts.
    async fn get(&self) -> Vec<String> {
        let got = self.storage.queues().get(&self.queue, GetMessages::new(32, LONG)).await.unwrap();
        got.messages.into_iter().map(|message| message.text.unwrap()).collect()
    }

    /// Returns when calls of the slow shard began.
    fn asked(&self, operation: Operation) -> Vec<Instant> {
        let calls = self.faulty.calls().into_iter();
        calls
            .filter(|call| call.operation == operation && call.subject == Self::SLOW)
            .map(|call| call.at)
            .collect()
    }
}

// review d of round 30, 1: the next answer to a put under way ended the pause.
#[tokio::test(start_paused = true)]
async fn answers_under_way_do_not_end_the_pause_of_a_shard() {
    let senders = Senders::new().await;
    let asked = AtomicU32::new(0);
    senders.faulty.on(Operation::Put, move |call| {
        (call.subject == Senders::SLOW).then(|| match asked.fetch_add(1, Ordering::SeqCst) % 20 {
            0 => Fault::Hang,
            _ => Fault::DelayAfter(Duration::from_millis(100)),
        })
    });
    let failed = senders.send(100).await;
    assert!(!failed.is_empty());
    let asked = senders.asked(Operation::Put);
    for failed in failed {
        let pause = failed + Duration::from_millis(1)..failed + Duration::from_secs(20);
        let in_pause = asked.iter().filter(|asked| pause.contains(asked)).count();
        assert_eq!(in_pause, 0, "puts in the 20 s after a failure at {:?}", failed - senders.begun);
    }
}

// review d of round 30, 2: a put that probed the shard kept gets away.
#[tokio::test(start_paused = true)]
async fn shard_that_answers_no_put_serves_its_messages() {
    let senders = Senders::new().await;
    senders.faulty.on(Operation::Put, |call| (call.subject == Senders::SLOW).then_some(Fault::Hang));
    let slow = QueueName::new(Senders::SLOW).unwrap();
    let receive = async {
        // A message arrives every ten seconds: while puts begin, are paused, and probe.
        for second in (0..300).step_by(10) {
            tokio::time::sleep_until(senders.begun + Duration::from_secs(second)).await;
            senders.account.queues().put(&slow, PutMessage::new("stored")).await.unwrap();
            let stored = Instant::now();
            while !senders.get().await.contains(&"stored".to_owned()) {
                assert!(stored.elapsed() < Duration::from_secs(1), "not received {second} s after the start");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    };
    let (failed, ()) = tokio::join!(senders.send(20), receive);
    assert!(!failed.is_empty());
}

// review d of round 30, 2: an answer to a get let all senders put again.
#[tokio::test(start_paused = true)]
async fn answers_to_gets_do_not_end_the_probe_of_a_put() {
    let senders = Senders::new().await;
    senders.faulty.on(Operation::Put, |call| (call.subject == Senders::SLOW).then_some(Fault::Hang));
    let receive = async {
        while senders.begun.elapsed() < Senders::TIME {
            senders.get().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let (failed, ()) = tokio::join!(senders.send(20), receive);
    assert!(failed.len() <= 20 + 12, "each sender once, and then one for each half minute: {}", failed.len());
}

// review d of round 30, 2: an answer to a put let the next get wait as long as the first.
#[tokio::test(start_paused = true)]
async fn answers_to_puts_do_not_end_the_doubt_of_gets() {
    let senders = Senders::new().await;
    senders.faulty.on(Operation::Get, |call| (call.subject == Senders::SLOW).then_some(Fault::Hang));
    let receive = async {
        let mut waits = Vec::new();
        while waits.len() < 3 {
            let begun = Instant::now();
            senders.get().await;
            waits.extend(Some(begun.elapsed().as_secs()).filter(|wait| *wait > 0));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        waits
    };
    let (failed, waits) = tokio::join!(senders.send(20), receive);
    assert!(failed.is_empty());
    assert_eq!(waits, [5, 1, 2], "seconds");
}

// review d of round 30, 5: the shard was left alone for 30 s.
#[tokio::test(start_paused = true)]
async fn refusal_of_a_message_ends_the_probe_of_its_put() {
    let senders = Senders::new().await;
    let put = async |text: &str| senders.storage.queues().put(&senders.queue, PutMessage::new(text)).await;
    let is_refused = Arc::new(AtomicBool::new(false));
    senders.faulty.on(Operation::Put, {
        let is_refused = Arc::clone(&is_refused);
        move |call| {
            let fault = match is_refused.load(Ordering::SeqCst) {
                true => Fault::Refuse(StoreErrorKind::TooLarge),
                false => Fault::Hang,
            };
            (call.subject == Senders::SLOW).then_some(fault)
        }
    });
    while put("hangs").await.is_ok() {}
    is_refused.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(31)).await;
    let begun = Instant::now();
    while put("refused").await.is_ok() {}
    while put("refused").await.is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(1), "the shard is still closed");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
