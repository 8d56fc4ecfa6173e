//! Looks while a part of the storage does not answer.

use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue_admin::DeadLetterFilter;
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::faults::dead_letters_on_two_shards;
use jobqueue_tests::jobs::{in_memory, task};

use crate::admin::support::operator;

#[tokio::test(start_paused = true)]
async fn search_says_that_a_part_of_the_queue_did_not_answer() {
    let (storage, faulty) = dead_letters_on_two_shards().await;
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

/// On Azure Storage the records of batches are in another service than the queues.
#[tokio::test(start_paused = true)]
async fn batches_are_shown_while_the_queues_cannot_be_listed() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let mut batch = storage.batch("import").await.unwrap();
    batch.send_all([task("a")]).await.unwrap();
    faulty.plan_always(Operation::ListQueues, Fault::Refuse(StoreErrorKind::Unauthorized));
    let found = operator(&storage).batches().await.unwrap();
    let [batch] = &found.batches[..] else { panic!("{found:?}") };
    assert!(found.complete);
    assert_eq!(batch.dead_text(), "?");
}
