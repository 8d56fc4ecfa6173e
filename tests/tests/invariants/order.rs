//! Order per key while the storage of the lines fails.

use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::testing::faults::{Fault, Faulty};
use jobqueue::{Queue, SendOptions, memory};
use jobqueue_tests::jobs::{Task, task};

async fn queue(faulty: &Faulty) -> Queue<Task> {
    faulty.storage().queue::<Task>().await.unwrap()
}

fn in_order() -> SendOptions {
    SendOptions::new().in_order()
}

#[tokio::test(start_paused = true)]
async fn a_queue_is_cleared_with_its_lines_or_an_error_says_that_it_is_not() {
    let faulty = Faulty::new(&memory::open());
    let queue = queue(&faulty).await;
    queue.clear().await.expect("no message was ever sent in order");
    for (operation, kind, works) in [
        (Operation::ListBlobs, StoreErrorKind::ContainerNotFound, true),
        (Operation::ListBlobs, StoreErrorKind::Unavailable, false),
        (Operation::DeleteBlob, StoreErrorKind::BlobNotFound, true),
        (Operation::DeleteBlob, StoreErrorKind::Unavailable, false),
    ] {
        let _ = queue.send_with(&task("a"), in_order()).await.unwrap();
        faulty.plan(operation, 1, Fault::Refuse(kind));
        assert_eq!(queue.clear().await.is_ok(), works, "{operation:?}, {kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_gets_no_place_is_taken_back_and_the_sender_told_whether_to_send_again() {
    // How often a place is asked for; who is overtaken by others tries longest.
    for (fault, tries, again) in [
        (Fault::Refuse(StoreErrorKind::Throttled), 5, true),
        (Fault::Refuse(StoreErrorKind::ConditionNotMet), 40, true),
        (Fault::LoseRequest(StoreErrorKind::Protocol), 40, true),
        (Fault::Refuse(StoreErrorKind::Unauthorized), 1, false),
    ] {
        let faulty = Faulty::new(&memory::open());
        let queue = queue(&faulty).await;
        faulty.plan_always(Operation::PutBlob, fault);
        let began = tokio::time::Instant::now();
        let error = queue.send_with(&task("a"), in_order()).await.unwrap_err();
        assert_eq!(faulty.calls_of(Operation::PutBlob), tries, "{fault:?}");
        // Pauses double up to half a second, and are shortened at random to a fifth.
        let seconds = began.elapsed().as_secs_f64();
        assert_eq!((2.0..25.0).contains(&seconds), tries == 40, "{fault:?}: {seconds} s");
        assert_eq!((error.is_rejected(), error.is_retryable()), (true, again), "{fault:?}: {error}");
        assert!(queue.is_empty().await.unwrap(), "{fault:?}");
    }
}

/// Otherwise it would be taken for empty, and the places in it for free.
#[tokio::test(start_paused = true)]
async fn a_line_that_cannot_be_read_is_not_written() {
    let faulty = Faulty::new(&memory::open());
    let queue = queue(&faulty).await;
    faulty.plan_always(Operation::GetBlob, Fault::Refuse(StoreErrorKind::Unauthorized));
    assert!(queue.send_with(&task("a"), in_order()).await.unwrap_err().is_rejected());
    assert_eq!((faulty.calls_of(Operation::GetBlob), faulty.calls_of(Operation::PutBlob)), (1, 0));
}
