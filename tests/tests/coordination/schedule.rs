//! Schedules as workers run them: fail-over, crashes, missed slots, clock changes. In paused time on memory.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use jobqueue::clock::Clock;
use jobqueue::schedule::{CatchUp, Schedule};
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{ErrorKind, JobError, QueueMessage, Runtime, Storage, Worker, WorkerBuilder, memory};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::death;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "ticks", kind = "tick")]
struct Tick {}

/// The message that the workers handle, so that ticks stay where the test counts them.
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "others", kind = "other")]
struct Other {}

/// Paused time from a given moment, with an offset that a test can set.
#[derive(Debug)]
struct Wall {
    from: SystemTime,
    start: Instant,
    ahead: Mutex<Duration>,
    behind: Mutex<Duration>,
}

impl Wall {
    fn at(moment: &str) -> Arc<Self> {
        let from = SystemTime::from(moment.parse::<jiff::Timestamp>().unwrap());
        Arc::new(Self { from, start: Instant::now(), ahead: Mutex::default(), behind: Mutex::default() })
    }

    fn forward(&self, by: Duration) {
        *self.ahead.lock().unwrap() += by;
    }

    fn back(&self, by: Duration) {
        *self.behind.lock().unwrap() += by;
    }
}

impl Clock for Wall {
    fn now(&self) -> SystemTime {
        self.from + self.start.elapsed() + *self.ahead.lock().unwrap() - *self.behind.lock().unwrap()
    }
}

const MINUTE: Duration = Duration::from_secs(60);

fn minutes(count: u32) -> Duration {
    MINUTE * count
}

fn builder(storage: &Storage, wall: &Arc<Wall>) -> WorkerBuilder {
    Worker::builder(storage.clone().with_runtime(Runtime::virtual_time(Arc::<Wall>::clone(wall))))
        .handle(|_: Other| async { Ok::<(), JobError>(()) })
}

fn every(interval: Duration) -> Schedule {
    Schedule::every(interval).name("tick")
}

/// Runs a worker with the schedule until the task is aborted.
fn start(storage: &Storage, wall: &Arc<Wall>, schedule: Schedule) -> JoinHandle<()> {
    let worker = builder(storage, wall).schedule_by(schedule, || Tick {}).build().unwrap();
    tokio::spawn(async move {
        let _ = worker.run_until(std::future::pending()).await.unwrap();
    })
}

/// Runs a worker with the schedule that shuts down gracefully.
async fn run_for(time: Duration, storage: &Storage, wall: &Arc<Wall>, schedule: Schedule) {
    let worker = builder(storage, wall).schedule_by(schedule, || Tick {}).build().unwrap();
    assert!(worker.run_until(sleep(time)).await.unwrap().completed == 0);
}

/// Removes the messages from the queue. Returns the times of their slots in the order of sending.
async fn sent(storage: &Storage) -> Vec<String> {
    let queue = storage.queue::<Tick>().await.unwrap();
    let mut slots = Vec::new();
    while let Some(delivery) = queue.receive(Duration::ZERO).await.unwrap() {
        let id = delivery.info().id.to_string();
        slots.push(id.strip_prefix("schedule/tick/").expect(&id).to_owned());
        delivery.complete().await.unwrap();
    }
    slots
}

fn times<const N: usize>(of_day: [&str; N]) -> Vec<String> {
    of_day.iter().map(|time| format!("2026-01-01T{time}Z")).collect()
}

// F83
#[tokio::test(start_paused = true)]
async fn every_slot_is_sent_once_by_one_of_two_workers() {
    let (storage, wall) = (Storage::memory(), Wall::at("2026-01-01T12:00:10Z"));
    let workers = [0, 1].map(|_| start(&storage, &wall, every(MINUTE)));
    sleep(minutes(5)).await;
    assert_eq!(sent(&storage).await, times(["12:01:00", "12:02:00", "12:03:00", "12:04:00", "12:05:00"]));
    workers.iter().for_each(JoinHandle::abort);
}

// F83
#[tokio::test(start_paused = true)]
async fn fail_over_skips_and_doubles_no_slot() {
    let (storage, wall) = (Storage::memory(), Wall::at("2026-01-01T12:00:05Z"));
    let faulty = Faulty::new(&storage);
    let ten = Duration::from_secs(10);
    let first = start(&faulty.storage(), &wall, every(ten));
    sleep(Duration::from_secs(20)).await;
    let second = start(&storage, &wall, every(ten));
    sleep(ten).await;
    death::now(&faulty);
    let begun = faulty.calls_of(Operation::Put);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(faulty.calls_of(Operation::Put), begun, "the dead one sent");
    let expected = [
        "12:00:10", "12:00:20", "12:00:30", "12:00:40", "12:00:50", "12:01:00", "12:01:10", "12:01:20",
        "12:01:30",
    ];
    assert_eq!(sent(&storage).await, times(expected));
    [first, second].iter().for_each(JoinHandle::abort);
}

/// Starts a worker with four schedules, at the distance of Azure.
fn start_many(storage: &Storage, wall: &Arc<Wall>) -> (Faulty, JoinHandle<()>) {
    let faulty = Faulty::deleting_one_by_one(storage);
    let named = |builder: WorkerBuilder, n: u64| {
        builder.schedule_by(every(MINUTE).name(format!("tick/{n}")), || Tick {})
    };
    let worker = (0..4).fold(builder(&faulty.storage(), wall), named).build().unwrap();
    let running = tokio::spawn(async move {
        let _ = worker.run_until(std::future::pending()).await.unwrap();
    });
    (faulty, running)
}

#[tokio::test(start_paused = true)]
async fn workers_with_many_schedules_watch_one_lease() {
    let (storage, wall) = (Storage::memory(), Wall::at("2026-01-01T12:00:10Z"));
    let (leader, first) = start_many(&storage, &wall);
    sleep(Duration::from_secs(5)).await;
    let (waiting, second) = start_many(&storage, &wall);
    sleep(minutes(10)).await;
    let requests = [Operation::AcquireLease, Operation::BlobProperties, Operation::RenewLease];
    let requests: usize = requests.into_iter().map(|operation| waiting.calls_of(operation)).sum();
    assert!((100..200).contains(&requests), "{requests} in ten minutes");
    assert_eq!(sent(&storage).await.len(), 40);
    // 12:10:15
    death::now(&leader);
    sleep(Duration::from_secs(40)).await;
    assert_eq!(sent(&storage).await.len(), 0);
    sleep(minutes(2)).await;
    assert_eq!(sent(&storage).await.len(), 8);
    [first, second].iter().for_each(JoinHandle::abort);
}

/// An operator breaks a lease so that another worker leads.
#[tokio::test(start_paused = true)]
async fn broken_lease_of_one_schedule_gives_all_to_the_other_worker() {
    let (storage, wall) = (Storage::memory(), Wall::at("2026-01-01T12:00:10Z"));
    let (leader, first) = start_many(&storage, &wall);
    sleep(Duration::from_secs(5)).await;
    let (waiting, second) = start_many(&storage, &wall);
    sleep(Duration::from_secs(10)).await;
    leader.plan(Operation::RenewLease, 1, Fault::Refuse(StoreErrorKind::LeaseBroken));
    // 12:00:25
    sleep(minutes(5)).await;
    assert_eq!(sent(&storage).await.len(), 20);
    assert_eq!(waiting.calls_of(Operation::Put), 20, "the first goes on leading");
    [first, second].iter().for_each(JoinHandle::abort);
}

/// The crash is planned at each write: of the leader's term, of the state and of the message.
// F50
#[tokio::test(start_paused = true)]
async fn crash_at_any_write_skips_and_doubles_no_slot() {
    for (nth, performed) in (1..=14).flat_map(|nth| [(nth, false), (nth, true)]) {
        let (storage, wall) = (Storage::memory(), Wall::at("2026-01-01T12:00:05Z"));
        let faulty = Faulty::new(&storage);
        let writes = death::at_write(&faulty, nth, performed);
        let schedule = every(Duration::from_secs(20));
        // A schedule begins when its state is first written.
        run_for(Duration::from_secs(1), &storage, &wall, schedule.clone()).await;
        let first = start(&faulty.storage(), &wall, schedule.clone());
        sleep(Duration::from_secs(3)).await;
        let second = start(&storage, &wall, schedule);
        sleep(minutes(3)).await;
        assert_eq!(writes.count(), nth, "not so many writes");
        let found = sent(&storage).await;
        let distinct: BTreeSet<_> = found.iter().cloned().collect();
        let expected = [
            "12:00:20", "12:00:40", "12:01:00", "12:01:20", "12:01:40", "12:02:00", "12:02:20", "12:02:40",
            "12:03:00",
        ];
        assert_eq!(Vec::from_iter(distinct), times(expected), "crash at write {nth}, performed: {performed}");
        assert_eq!(
            found.len(),
            expected.len(),
            "doubled by the crash at write {nth}, performed: {performed}"
        );
        [first, second].iter().for_each(JoinHandle::abort);
    }
}

// F50
#[tokio::test(start_paused = true)]
async fn slot_received_before_the_crash_is_resent_under_its_id() {
    let (storage, wall) = (Storage::memory(), Wall::at("2026-01-01T12:04:30Z"));
    let faulty = Faulty::new(&storage);
    let doomed = faulty.clone();
    // The message is stored; the process dies before its answer.
    faulty.on(Operation::Put, move |_| {
        death::now(&doomed);
        Some(Fault::HangAfter)
    });
    let first = start(&faulty.storage(), &wall, every(minutes(5)));
    sleep(MINUTE).await;
    assert_eq!(sent(&storage).await, times(["12:05:00"]));
    let second = start(&storage, &wall, every(minutes(5)));
    sleep(minutes(2)).await;
    assert_eq!(sent(&storage).await, times(["12:05:00"]));
    sleep(minutes(5)).await;
    assert_eq!(sent(&storage).await, times(["12:10:00"]));
    [first, second].iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn missed_slots_are_sent_as_the_policy_says() {
    let cases: [(CatchUp, &[&str]); 5] = [
        (CatchUp::Skip, &["12:25:00"]),
        (CatchUp::All(0), &["12:25:00"]),
        (CatchUp::Once, &["12:20:00", "12:25:00"]),
        (CatchUp::All(2), &["12:15:00", "12:20:00", "12:25:00"]),
        (CatchUp::All(100), &["12:10:00", "12:15:00", "12:20:00", "12:25:00"]),
    ];
    for (policy, expected) in cases {
        let (storage, wall) = (Storage::memory(), Wall::at("2026-01-01T12:04:00Z"));
        let schedule = every(minutes(5)).missed(policy);
        run_for(minutes(2), &storage, &wall, schedule.clone()).await;
        assert_eq!(sent(&storage).await, times(["12:05:00"]), "{policy:?}");
        wall.forward(minutes(17));
        run_for(minutes(3), &storage, &wall, schedule).await;
        let expected: Vec<_> = expected.iter().map(|time| format!("2026-01-01T{time}Z")).collect();
        assert_eq!(sent(&storage).await, expected, "{policy:?}");
    }
}

/// Checks that a slot which is less than a minute late is not missed.
// F83
#[tokio::test(start_paused = true)]
async fn slots_of_the_last_minute_are_sent_under_every_policy() {
    for policy in [CatchUp::Skip, CatchUp::Once, CatchUp::All(1)] {
        let (storage, wall) = (Storage::memory(), Wall::at("2026-01-01T12:04:30Z"));
        let schedule = every(Duration::from_secs(20)).missed(policy);
        run_for(Duration::from_secs(5), &storage, &wall, schedule.clone()).await;
        wall.forward(minutes(3));
        run_for(Duration::from_secs(1), &storage, &wall, schedule).await;
        assert_eq!(sent(&storage).await, times(["12:06:40", "12:07:00", "12:07:20"]), "{policy:?}");
    }
}

// F84
#[tokio::test(start_paused = true)]
async fn clock_set_back_sends_nothing_twice() {
    let (storage, wall) = (Storage::memory(), Wall::at("2026-01-01T12:04:00Z"));
    let worker = start(&storage, &wall, every(minutes(5)));
    sleep(minutes(2)).await;
    assert_eq!(sent(&storage).await, times(["12:05:00"]));
    wall.back(minutes(30));
    sleep(minutes(33)).await;
    assert_eq!(sent(&storage).await, times::<0>([]));
    sleep(minutes(2)).await;
    assert_eq!(sent(&storage).await, times(["12:10:00"]));
    worker.abort();
}

// F84
#[tokio::test(start_paused = true)]
async fn clock_set_forward_makes_slots_missed() {
    let (storage, wall) = (Storage::memory(), Wall::at("2026-01-01T12:04:00Z"));
    let worker = start(&storage, &wall, every(minutes(5)));
    sleep(minutes(2)).await;
    wall.forward(minutes(62));
    sleep(minutes(3)).await;
    assert_eq!(sent(&storage).await, times(["12:05:00", "13:05:00", "13:10:00"]));
    worker.abort();
}

/// After a clock has jumped ten years ahead and was corrected, the policy decides which slots were sent, not
/// one slot for every minute of ten years. The schedule then waits until that time comes, unless its state is
/// deleted.
// F84
#[tokio::test(start_paused = true)]
async fn clock_far_ahead_follows_the_catch_up_policy() {
    let decade = Duration::from_secs(3652 * 86_400);
    for (policy, expected) in
        [(CatchUp::Skip, 2), (CatchUp::Once, 2), (CatchUp::All(3), 4), (CatchUp::All(1), 2)]
    {
        let (storage, wall) = (Storage::memory(), Wall::at("2026-01-01T12:04:30Z"));
        let schedule = every(MINUTE).missed(policy);
        let worker = start(&storage, &wall, schedule.clone());
        sleep(MINUTE).await;
        assert_eq!(sent(&storage).await, times(["12:05:00"]), "{policy:?}");
        wall.forward(decade);
        sleep(MINUTE).await;
        // The missed ones that the policy allows, and the next.
        let ahead = sent(&storage).await;
        assert_eq!(ahead.len(), expected, "{policy:?}: {ahead:?}");
        assert!(ahead.iter().all(|slot| slot.starts_with("2036-01-01")), "{policy:?}: {ahead:?}");
        wall.back(decade);
        sleep(minutes(60)).await;
        assert_eq!(sent(&storage).await, times::<0>([]), "{policy:?}");
        worker.abort();
        sleep(Duration::from_secs(1)).await;
        // The procedure of the documentation.
        let container = "jobqueue-schedules".parse().unwrap();
        let state = jobqueue::storage::BlobName::new(container, "tick").unwrap();
        storage.blobs().delete_blob(&state, None).await.unwrap();
        sleep(minutes(2)).await;
        run_for(minutes(2), &storage, &wall, schedule).await;
        assert_eq!(sent(&storage).await, times(["13:09:00", "13:10:00"]), "{policy:?}");
    }
}

/// A worker with a schedule needs no handler; a worker without both is a mistake.
#[tokio::test(start_paused = true)]
async fn a_worker_may_have_nothing_but_schedules() {
    let (storage, wall) = (Storage::memory(), Wall::at("2026-01-01T12:00:10Z"));
    let bare =
        || Worker::builder(storage.clone().with_runtime(Runtime::virtual_time(Arc::<Wall>::clone(&wall))));
    let worker = bare().schedule_by(every(MINUTE), || Tick {}).build().unwrap();
    assert!(worker.run_until(sleep(minutes(2))).await.unwrap().is_clean());
    assert_eq!(sent(&storage).await, times(["12:01:00", "12:02:00"]));
    // Schedules are not waited for.
    let worker = bare().schedule_by(every(MINUTE), || Tick {}).build().unwrap();
    let report = tokio::time::timeout(minutes(2), worker.run_until_idle()).await.expect("it is idle");
    assert!(report.unwrap().is_clean());
    let error = bare().build().unwrap_err();
    assert!(error.to_string().contains("without handlers and schedules"), "{error}");
}

// F84
#[tokio::test(start_paused = true)]
async fn summer_time_fires_once_in_gap_and_once_in_fold() {
    for (from, expected) in [
        ("2026-03-29T00:59:30Z", "2026-03-29T01:00:00Z"),
        // 02:30 in summer time; an hour later it is 02:30 again.
        ("2026-10-25T00:29:30Z", "2026-10-25T00:30:00Z"),
    ] {
        let (storage, wall) = (Storage::memory(), Wall::at(from));
        let schedule = Schedule::cron("30 2 * * *", "Europe/Berlin").name("tick");
        run_for(minutes(90), &storage, &wall, schedule).await;
        assert_eq!(sent(&storage).await, [expected]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrong_schedule_is_told_by_build() {
    let (storage, wall) = (memory::open(), Wall::at("2026-01-01T12:00:00Z"));
    let wrong = [
        (Schedule::cron("61 * * * *", "UTC"), "61 * * * *"),
        (Schedule::cron("0 0 30 2 *", "UTC"), "never comes"),
        (Schedule::cron("0 6 * * *", "Europe/Berlim"), "Europe/Berlim"),
        (Schedule::every(Duration::from_millis(999)), "1 second"),
        (Schedule::every(MINUTE).name("no spaces"), "contains ' '; use ASCII letters"),
        (Schedule::every(MINUTE).name(""), "has 0 characters"),
        (Schedule::every(MINUTE).name("n".repeat(101)), "100 characters"),
        (Schedule::every(MINUTE).lease(Duration::from_secs(14)), "15 to 60"),
    ];
    for (schedule, told) in wrong {
        let shown = format!("{schedule:?}");
        let error = builder(&storage, &wall).schedule_by(schedule, || Tick {}).build().expect_err(&shown);
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        assert!(error.to_string().contains(told), "`{error}` does not tell of {told}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_schedules_of_one_name_are_refused() {
    let builder = || Worker::builder(Storage::memory());
    let unnamed = builder().every(MINUTE, || Tick {}).every(MINUTE, || Tick {});
    let error = unnamed.build().unwrap_err();
    assert!(
        error.kind() == ErrorKind::Configuration && error.to_string().contains("Schedule::name"),
        "{error}"
    );
    let named = |name: &str| Schedule::every(MINUTE).name(name);
    let (eu, us) = (named("eu"), named("us"));
    let _ = builder().schedule_by(eu.clone(), || Tick {}).schedule_by(us, || Tick {}).build().unwrap();
    builder().schedule_by(eu.clone(), || Tick {}).schedule_by(eu, || Tick {}).build().unwrap_err();
}
