//! Ages and pauses on a machine with a wrong clock: they are those of the storage.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::settings::Metadata;
use jobqueue::storage::{Interceptor, Operation, PutMessage, QueuePowers, StoreErrorKind};
use jobqueue::{ErrorKind, JobError, Reason, Runtime, Storage, Worker};
use jobqueue_admin::{DeadLetterFilter, JobReference, PauseOptions};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, clock, in_memory, task};

use crate::admin::explain_turns::WithoutIndex;
use crate::admin::presence::{Wrong, operator};
use crate::admin::support::storages;

#[tokio::test(start_paused = true)]
async fn oldest_job_and_pause_are_judged_by_the_clock_of_the_storage() {
    use jobqueue::clock::Clock;
    let storage = in_memory();
    let _ = storage.queue::<Task>().await.unwrap().send(&task("one")).await.unwrap();
    let hour = Duration::from_secs(3_600);
    let pause = PauseOptions::new().until(clock().now() + hour);
    assert!(operator(&storage).pause_with("tasks", pause).await.unwrap());
    for (waits, paused) in [(60, true), (3_600, false)] {
        after(waits).await;
        for by in [-7_200, 7_200] {
            let wrong = storage.clone().with_runtime(Runtime::new().with_clock(Arc::new(Wrong(by))));
            let seen = operator(&wrong).queue("tasks").await.unwrap();
            let expected = operator(&storage).queue("tasks").await.unwrap();
            assert_eq!((seen.paused, seen.pause.is_some()), (Some(paused), paused), "{by}");
            assert_eq!(seen.oldest, expected.oldest, "{by}");
        }
    }
}

// audit 25, OPS-C2
#[tokio::test(start_paused = true)]
async fn delay_is_ended_or_not_by_the_clock_of_the_storage() {
    let (storage, day) = (in_memory(), Duration::from_secs(86_400));
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("first")).key("ada").in_order().await.unwrap();
    let _ = queue.send(&task("second")).key("ada").in_order().id("second").delay(day).await.unwrap();
    // Its message says so itself.
    let _ = queue.send(&task("third")).id("third").delay(day * 10).await.unwrap();
    let ahead = Runtime::new().with_clock(Arc::new(Wrong(20 * 86_400)));
    let admin = operator(&storage.clone().with_runtime(ahead));
    assert!(admin.run_now(&JobReference::new("tasks", "second")).await.unwrap().is_some());
    let refused = admin.run_now(&JobReference::new("tasks", "third")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
}

// A machine without a time has letters of 1970, one whose clock is ahead letters of the years to come.
#[tokio::test]
async fn age_of_a_letter_is_not_that_of_its_workers_clock() {
    for (storage, _folder) in storages().await {
        let admin = operator(&storage);
        for queue in ["tasks", "late", "early"] {
            admin.create_queue(queue).await.unwrap();
        }
        let queue = storage.queue::<Task>().await.unwrap();
        let _ = queue.send(&task("one")).await.unwrap();
        let delivery = queue.receive(Duration::ZERO).await.unwrap().unwrap();
        delivery.dead_letter(Reason::REJECTED, "no such address").await.unwrap();
        let letter = storage.queues().peek(&"tasks-poison".parse().unwrap(), 1).await.unwrap().remove(0);
        let died = admin.dead_letters("tasks", &DeadLetterFilter::new()).await.unwrap().letters.remove(0);
        let died = died.dead.unwrap().time.unwrap();
        for (queue, time) in [("late", "1970-01-01T00:00:09.000Z"), ("early", "2120-01-01T00:00:00.000Z")] {
            let text = letter.text.as_ref().unwrap().replace(&died, time);
            assert!(text.contains(time), "{text}");
            let dead = format!("{queue}-poison").parse().unwrap();
            storage.queues().create_queue(&dead, &Metadata::new()).await.unwrap();
            let _ = storage.queues().put(&dead, PutMessage::new(text)).await.unwrap();
            let month = Duration::from_secs(30 * 86_400);
            for (filter, count) in [
                (DeadLetterFilter::new().older_than(month), 0),
                (DeadLetterFilter::new().older_than(Duration::ZERO), 1),
                (DeadLetterFilter::new().younger_than(month), 1),
                (DeadLetterFilter::new().younger_than(Duration::ZERO), 0),
            ] {
                let purge = admin.purge(queue).filter(filter.clone()).dry_run(true).run().await.unwrap();
                assert_eq!(purge.count, count, "{queue}: {filter}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn pause_of_a_length_is_refused_where_the_time_cannot_be_read() {
    let storage = in_memory();
    storage.queue::<Task>().await.unwrap();
    let faulty = Faulty::new(&storage);
    for operation in [Operation::QueueProperties, Operation::ListBlobs] {
        faulty.plan_always(operation, Fault::Refuse(StoreErrorKind::Unauthorized));
    }
    let admin = operator(&faulty.storage());
    let options = PauseOptions::new().length(Duration::from_secs(3_600));
    let refused = admin.pause_with("tasks", options).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Storage, "{refused:?}");
    assert!(admin.pause("tasks").await.unwrap(), "a pause without an end needs no time");
}

/// Hides the power of a storage to count messages by state.
#[derive(Debug)]
struct Uncounted;

impl Interceptor for Uncounted {
    fn queue_powers(&self, powers: QueuePowers) -> QueuePowers {
        QueuePowers { counts: None, ..powers }
    }
}

// The listing of a container that does not exist is refused, and the refusal has the time.
#[tokio::test]
async fn age_is_known_where_no_worker_has_written_a_record() {
    for (storage, _folder) in storages().await {
        let _ = storage.queue::<Task>().await.unwrap().send(&task("one")).await.unwrap();
        let faulty = Faulty::new(&Storage::from(storage.stores().intercepted(&Arc::new(Uncounted))));
        faulty.plan_always(Operation::QueueProperties, Fault::Refuse(StoreErrorKind::Unsupported));
        let seen = operator(&faulty.storage()).queue("tasks").await.unwrap();
        assert_eq!(seen.length, None);
        assert!(seen.oldest.is_some(), "{seen:?}");
    }
}

// audit 25, operator C15
#[tokio::test(start_paused = true)]
async fn ends_by_the_clock_of_a_worker_are_those_of_the_jobs_that_were_put_back() {
    for by in [-5, 5] {
        let storage = in_memory();
        let queue = storage.queue::<Task>().await.unwrap();
        let run = async || {
            let wrong = storage.clone().with_runtime(Runtime::virtual_time(Arc::new(Wrong(by))));
            let handler = async |_: Task| Ok::<_, JobError>(());
            let day = Duration::from_secs(86_400);
            let worker = Worker::builder(wrong).history(day).handle(handler).build().unwrap();
            let _ = worker.run_until(after(2)).await.unwrap();
        };
        let _ = queue.send(&task("a")).id("a").await.unwrap();
        // An earlier life of the job.
        run().await;
        let _ = queue.send(&task("a")).id("a").await.unwrap();
        let delivery = queue.receive(Duration::ZERO).await.unwrap().unwrap();
        delivery.dead_letter(Reason::REJECTED, "no such address").await.unwrap();
        let _ = queue.send(&task("b")).delay(Duration::from_secs(7_200)).await.unwrap();
        let shows_few = Storage::from(storage.stores().intercepted(&Arc::new(WithoutIndex)));
        let admin = operator(&shows_few);
        let report = admin.redrive("tasks").filter(DeadLetterFilter::all()).run().await.unwrap();
        let held = storage.queue::<Task>().await.unwrap().receive(Duration::ZERO).await.unwrap().unwrap();
        let outcome = admin.outcome_of(&report).await.unwrap();
        assert_eq!((outcome.unknown, outcome.ended), (1, 0), "{by}: {outcome:?}");
        held.release(Duration::ZERO).await.unwrap();
        run().await;
        let outcome = admin.outcome_of(&report).await.unwrap();
        assert_eq!((outcome.unknown, outcome.ended), (0, 1), "{by}: {outcome:?}");
    }
}
