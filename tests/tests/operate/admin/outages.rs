//! Looks while a part of the storage does not answer.

use jobqueue::sharded::Sharded;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{JobError, Storage};
use jobqueue_admin::DeadLetterFilter;
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, in_memory, task, worker};

use crate::admin::support::operator;

#[tokio::test(start_paused = true)]
async fn search_says_that_a_part_of_the_queue_did_not_answer() {
    let (one, two) = (in_memory(), in_memory());
    let faulty = Faulty::new(&two);
    let accounts = Sharded::builder().account("one", one).account("two", faulty.storage());
    let sharded = accounts.shards("tasks", 2).shards("tasks-poison", 2).build().unwrap();
    let storage = Storage::from(sharded.stores());
    let queue = storage.queue::<Task>().await.unwrap();
    for name in ["a", "b", "c", "d"] {
        queue.send(&task(name)).await.unwrap();
    }
    let reject = |_: Task| async { Err::<(), _>(JobError::dead_letter("no")) };
    let rejected = worker(&storage).handle(reject).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(rejected.dead_lettered, 4);

    let admin = operator(&storage);
    let search = async || admin.search_dead_letters("tasks", &DeadLetterFilter::new(), 10).await.unwrap();
    faulty.plan_always(Operation::Get, Fault::Refuse(StoreErrorKind::Unavailable));
    let page = search().await;
    assert!(!page.complete && page.matching < 4, "{page:?}");
    assert!(page.stopped.as_deref().is_some_and(|why| why.contains("did not answer")), "{page:?}");
    faulty.heal();
    let page = search().await;
    assert_eq!((page.matching, page.stopped), (4, None));
}
