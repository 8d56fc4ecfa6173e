//! Sharded storage: properties beyond those of one queue. Its common promises are in `conformance`.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::clock::ManualClock;
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::settings::Metadata;
use jobqueue::sharded::Sharded;
use jobqueue::storage::{
    ExpiredReceipt, GetMessages, Interceptor, LeaseLinks, LeaseRevoked, MessageRef, Operation, PutMessage,
    QueuePowers, StoreErrorKind, WarmUp,
};
use jobqueue::{JobError, QueueName, Runtime, SendOptions, Storage, memory};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::faults::dead_letters_on_two_shards;
use jobqueue_tests::jobs::{Task, in_memory, task, worker};

pub(super) const LONG: Duration = Duration::from_secs(600);

pub(super) struct Setup {
    accounts: Vec<Storage>,
    clock: Arc<ManualClock>,
    pub(super) queue: QueueName,
}

impl Setup {
    pub(super) fn new(accounts: usize) -> Self {
        let clock = Arc::new(ManualClock::new());
        let accounts =
            (0..accounts).map(|_| memory::open_on(Runtime::new().with_clock(clock.clone()))).collect();
        Self { accounts, clock, queue: "work".parse().unwrap() }
    }

    /// Opens the storage like another process.
    pub(super) fn open(&self, shards: u32) -> Sharded {
        let mut builder = Sharded::builder().shards("work", shards);
        for (number, account) in self.accounts.iter().enumerate() {
            builder = builder.account(format!("a{number}"), account.clone());
        }
        builder.build().unwrap()
    }

    pub(super) async fn create(&self, sharded: &Sharded) {
        Storage::from(sharded.stores()).queues().create_queue(&self.queue, &Metadata::new()).await.unwrap();
    }

    async fn put(&self, sharded: &Sharded, texts: std::ops::Range<u32>) {
        for text in texts {
            Storage::from(sharded.stores())
                .queues()
                .put(&self.queue, PutMessage::new(text.to_string()))
                .await
                .unwrap();
        }
    }

    /// Gets and deletes until the queue is empty.
    pub(super) async fn drain(&self, sharded: &Sharded) -> HashSet<String> {
        let (storage, mut texts) = (Storage::from(sharded.stores()), HashSet::new());
        loop {
            let options = GetMessages::new(5, LONG);
            let got = storage.queues().get(&self.queue, options).await.unwrap().messages;
            if got.is_empty() {
                return texts;
            }
            for message in got {
                assert!(texts.insert(message.text.unwrap()), "got twice");
                storage.queues().delete(&self.queue, &message.message, ExpiredReceipt::Refuse).await.unwrap();
            }
        }
    }
}

pub(super) fn texts(range: std::ops::Range<u32>) -> HashSet<String> {
    range.map(|n| n.to_string()).collect()
}

// I17, F85
#[tokio::test(start_paused = true)]
async fn queue_that_grows_and_shrinks_strands_nothing() {
    let setup = Setup::new(2);
    let (one, other) = (setup.open(4), setup.open(4));
    setup.create(&one).await;
    setup.put(&one, 0..100).await;
    setup.put(&other, 100..200).await;
    one.reshard(&setup.queue, 8).await.unwrap();
    setup.put(&one, 200..300).await;
    // The other process does not know yet, and puts into the old shards.
    setup.put(&other, 300..400).await;
    setup.clock.advance(Duration::from_secs(600));
    // Old shards with messages are kept however old they are.
    assert_eq!(one.retire(&setup.queue).await.unwrap(), 4);
    one.reshard(&setup.queue, 2).await.unwrap();
    setup.put(&one, 400..500).await;
    assert_eq!(setup.drain(&one).await, texts(0..500));
    setup.clock.advance(Duration::from_secs(600));
    assert_eq!(one.retire(&setup.queue).await.unwrap(), 0);
    // A map older than is allowed is read again before it is used.
    tokio::time::advance(Duration::from_secs(31)).await;
    setup.put(&other, 500..600).await;
    assert_eq!(setup.drain(&one).await, texts(500..600));
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_was_not_sharded_keeps_its_messages() {
    let setup = Setup::new(1);
    let plain = &setup.accounts[0];
    plain.queues().create_queue(&setup.queue, &Metadata::new()).await.unwrap();
    plain.queues().put(&setup.queue, PutMessage::new("0")).await.unwrap();
    let sharded = setup.open(3);
    setup.put(&sharded, 1..10).await;
    // An external producer knows nothing of shards.
    plain.queues().put(&setup.queue, PutMessage::new("10")).await.unwrap();
    assert_eq!(
        Storage::from(sharded.stores())
            .queues()
            .queue_properties(&setup.queue)
            .await
            .unwrap()
            .approximate_count,
        11
    );
    assert_eq!(setup.drain(&sharded).await, texts(0..11));
    assert_eq!(
        Storage::from(sharded.stores()).queues().list_queues("").await.unwrap(),
        std::slice::from_ref(&setup.queue)
    );
}

#[tokio::test(start_paused = true)]
async fn properties_show_messages_in_former_shards() {
    let setup = Setup::new(2);
    let sharded = setup.open(1);
    setup.create(&sharded).await;
    setup.put(&sharded, 0..3).await;
    let storage = Storage::from(sharded.stores());
    let in_former = async || storage.queues().queue_properties(&setup.queue).await.unwrap().in_former_shards;
    assert!(!in_former().await, "the only queue takes new messages");
    sharded.reshard(&setup.queue, 4).await.unwrap();
    assert!(in_former().await);
    assert_eq!(setup.drain(&sharded).await, texts(0..3));
    setup.put(&sharded, 3..6).await;
    assert!(!in_former().await);
}

#[tokio::test(start_paused = true)]
async fn a_key_has_one_shard_and_others_take_turns() {
    let setup = Setup::new(2);
    let sharded = setup.open(4);
    setup.create(&sharded).await;
    let storage = Storage::from(sharded.stores());
    let mut shards = HashSet::new();
    for _ in 0..20 {
        let message = PutMessage::new("x").with_shard_key(Some("customer-7".into()));
        let id = storage.queues().put(&setup.queue, message).await.unwrap().message.id;
        shards.insert(id.as_str().rsplit_once('.').unwrap().0.to_owned());
    }
    assert_eq!(shards.len(), 1, "{shards:?}");
    for _ in 0..4 {
        let id = storage.queues().put(&setup.queue, PutMessage::new("x")).await.unwrap().message.id;
        shards.insert(id.as_str().rsplit_once('.').unwrap().0.to_owned());
    }
    assert_eq!(shards.len(), 4, "{shards:?}");
}

/// F85: a message with a delay of weeks hops within its shard. The shard is kept for it although the number
/// of shards has changed since.
// I17
#[tokio::test(start_paused = true)]
async fn delay_of_weeks_survives_superseded_shards() {
    const DAY: Duration = Duration::from_secs(86_400);
    let accounts = [in_memory(), in_memory()];
    let mut builder = Sharded::builder().shards("tasks", 4);
    for (number, account) in accounts.iter().enumerate() {
        builder = builder.account(format!("a{number}"), account.clone());
    }
    let sharded = builder.build().unwrap();
    let (storage, name) = (Storage::from(sharded.stores()), QueueName::new("tasks").unwrap());
    let ran = Arc::new(std::sync::Mutex::new(Vec::new()));
    let begun = tokio::time::Instant::now();
    let log = Arc::clone(&ran);
    let handler = move |message: Task| {
        log.lock().unwrap().push((message.name, begun.elapsed().as_secs() / DAY.as_secs()));
        async { Ok::<(), JobError>(()) }
    };
    let queue = storage.queue_named::<Task>("tasks").await.unwrap();
    for (name, days) in [("a", 20), ("b", 9), ("c", 8), ("d", 7), ("e", 1)] {
        // A little more, so that whole days tell.
        let later = SendOptions::new().delay(DAY * days + Duration::from_secs(60));
        queue.send(&task(name)).with(later).await.unwrap();
    }
    let keep = async {
        tokio::time::sleep(DAY * 2).await;
        sharded.reshard(&name, 8).await.unwrap();
        tokio::time::sleep(DAY * 2).await;
        sharded.reshard(&name, 4).await.unwrap();
        tokio::time::sleep(DAY / 2).await;
        // Four sleepers are in shards of the first generation; those of the second are empty.
        assert_eq!(sharded.retire(&name).await.unwrap(), 4);
        tokio::time::sleep(DAY * 17).await;
        assert_eq!(sharded.retire(&name).await.unwrap(), 0);
    };
    // Seldom looks, since a look is what this test's time goes into.
    let worker = worker(&storage).max_idle_delay(DAY / 24).settings_refresh(DAY).handle(handler);
    let _ = worker.build().unwrap().run_until(keep).await.unwrap();
    let ran = ran.lock().unwrap().clone();
    let expected = [("e", 1), ("d", 7), ("c", 8), ("b", 9), ("a", 20)];
    let expected: Vec<_> = expected.iter().map(|(name, day)| ((*name).to_owned(), *day)).collect();
    assert_eq!(ran, expected);
    assert!(queue.is_empty().await.unwrap());
}

// B7: the home account's blobs hold the map, and the map is not needed to keep what is leased.
#[tokio::test(start_paused = true)]
async fn an_outage_of_the_map_loses_no_lease_and_stops_only_sending() {
    for fault in [Fault::Refuse(StoreErrorKind::Unavailable), Fault::Hang] {
        let (home, other) = (Faulty::new(&in_memory()), in_memory());
        let sharded = Sharded::builder().account("a", home.storage()).account("b", other).shards("tasks", 4);
        let sharded = sharded.build().unwrap();
        let queue = Storage::from(sharded.stores()).queue::<Task>().await.unwrap();
        for number in 0..16 {
            let _ = queue.send(&task(number.to_string())).await.unwrap();
        }
        let plan = home.clone();
        let handler = move |_: Task| {
            plan.plan_always(Operation::GetBlob, fault);
            async {
                tokio::time::sleep(Duration::from_secs(150)).await;
                Ok::<(), JobError>(())
            }
        };
        // The second half is received in the outage.
        let worker = worker(&Storage::from(sharded.stores())).concurrency(8).handle(handler).build().unwrap();
        let report = worker.run_until(tokio::time::sleep(Duration::from_secs(360))).await.unwrap();
        assert_eq!(report.completed, 16, "{fault:?}");
        assert_eq!(report.lease_lost, 0, "{fault:?}");
        assert_eq!(report.uncertain, 0, "{fault:?}");
        let refused = tokio::time::timeout(Duration::from_secs(40), queue.send(&task("late"))).await;
        assert!(!matches!(refused, Ok(Ok(_))), "a put by an old map could reach a shard that is retired");
        home.heal();
        let _ = queue.send(&task("late")).await.unwrap();
    }
}

/// D2: the other shards are empty, and the one that does not answer has letters: that is no end.
#[tokio::test(start_paused = true)]
async fn redrive_does_not_end_while_a_shard_does_not_answer() {
    let (storage, faulty) = dead_letters_on_two_shards().await;
    let queue = storage.queue::<Task>().await.unwrap();
    faulty.plan_always(Operation::Get, Fault::Refuse(StoreErrorKind::Unavailable));
    let dead = queue.dead_letters().unwrap();
    let cut = dead.redrive(DeadLetterOptions::new()).await.unwrap();
    assert!(cut.moved.len() < 4, "one shard does not answer: {cut:?}");
    assert!(cut.stopped.as_deref().unwrap_or_default().contains("did not answer"), "{cut:?}");
    faulty.heal();
    let rest = dead.redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!((cut.moved.len() + rest.moved.len(), rest.stopped), (4, None));
}

#[tokio::test(start_paused = true)]
async fn questions_about_a_queue_ask_many_shards_at_once() {
    let faulty = Faulty::new(&memory::open());
    let builder = Sharded::builder().account("a", faulty.storage()).shards("work", 64);
    let storage = Storage::from(builder.build().unwrap().stores());
    let (queues, queue) = (storage.queues(), QueueName::new("work").unwrap());
    queues.create_queue(&queue, &Metadata::new()).await.unwrap();
    for number in 0..128 {
        queues.put(&queue, PutMessage::new(number.to_string())).await.unwrap();
    }
    for operation in [Operation::QueueProperties, Operation::Peek, Operation::Clear] {
        faulty.plan_always(operation, Fault::DelayBefore(Duration::from_secs(1)));
    }
    let begun = tokio::time::Instant::now();
    assert_eq!(queues.queue_properties(&queue).await.unwrap().approximate_count, 128);
    assert_eq!(queues.counts_by_state(&queue).await.unwrap().unwrap().waiting, 128);
    assert_eq!(queues.peek(&queue, 32).await.unwrap().len(), 32);
    queues.clear(&queue).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?} for 65 shards", begun.elapsed());
}

/// The queues whose connections were opened in advance.
#[derive(Debug, Default, Clone)]
struct Links(Arc<Mutex<HashSet<String>>>);

impl Interceptor for Links {
    fn queue_powers(&self, powers: QueuePowers) -> QueuePowers {
        QueuePowers { links: Some(Arc::new(self.clone())), ..powers }
    }
}

impl LeaseLinks for Links {
    fn lease_revoked(&self, _: &QueueName, _: &MessageRef) -> Option<LeaseRevoked> {
        None
    }

    fn warm_up(&self, queue: &QueueName) -> Option<WarmUp> {
        let (opened, queue) = (Arc::clone(&self.0), queue.to_string());
        Some(Box::pin(async move {
            opened.lock().unwrap().insert(queue);
        }))
    }
}

// K3: the first renewal of a short lease must not wait for a connection, whichever shard the message came
// from.
#[tokio::test(start_paused = true)]
async fn connections_for_renewals_are_opened_to_all_shards_in_advance() {
    let links = Links::default();
    let account = memory::open().stores().intercepted(&Arc::new(links.clone()));
    let sharded = Sharded::builder().account("a", account).shards("work", 2).build().unwrap();
    let (storage, queue) = (Storage::from(sharded.stores()), QueueName::new("work").unwrap());
    storage.queues().create_queue(&queue, &Metadata::new()).await.unwrap();
    storage.queues().warm_up(&queue).expect("connections to open").await;
    let opened = links.0.lock().unwrap().clone();
    assert_eq!(opened, ["work", "work-s0v1", "work-s1v1"].map(str::to_owned).into());
}
