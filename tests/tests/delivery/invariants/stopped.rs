//! A storage that has stopped for good: F56.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{ErrorKind, JobError};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};

// F56
#[tokio::test(start_paused = true)]
async fn worker_with_stopped_storage_lets_handlers_end() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let tasks = storage.queue::<Task>().await.unwrap();
    let _ = tasks.send(&task("a")).await.unwrap();
    let ended = Arc::new(Mutex::new(false));
    let (end, stop) = (Arc::clone(&ended), faulty.clone());
    let handler = move |_: Task| {
        let (end, stop) = (Arc::clone(&end), stop.clone());
        async move {
            for &operation in Operation::ALL {
                stop.plan_always(operation, Fault::Refuse(StoreErrorKind::Stopped));
            }
            after(10).await;
            *end.lock().unwrap() = true;
            Ok::<(), JobError>(())
        }
    };
    let worker = worker(&storage).handle(handler).build().unwrap().run_until(std::future::pending());
    let ended_by_itself = tokio::time::timeout(Duration::from_secs(3600), worker).await;
    let error = ended_by_itself.expect("it does not go on for ever").unwrap_err();
    assert!(error.kind() == ErrorKind::Storage && !error.is_retryable(), "{error:?}");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("open the storage again"), "{cause}");
    assert!(*ended.lock().unwrap(), "the handler came to its end");
    faulty.heal();
    assert_eq!(tasks.approximate_len().await.unwrap(), 1, "what was not acknowledged is still there");
}
