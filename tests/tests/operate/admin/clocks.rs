//! Ages and pauses on a machine with a wrong clock: they are those of the storage.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::storage::{Interceptor, Operation, QueuePowers, StoreErrorKind};
use jobqueue::{ErrorKind, Runtime, Storage};
use jobqueue_admin::PauseOptions;
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, clock, in_memory, task};

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
