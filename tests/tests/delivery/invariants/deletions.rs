//! The deletion of a finished job when the storage refuses it or its answer is lost: I9, F9–F11.

use std::time::Duration;

use jobqueue::memory;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue_testing::faults::{Fault, Faulty};

use crate::invariants::ownership::run_one;

/// Returns the fault of a throttled change that was not applied, which the storage does not tell.
fn not_applied(seconds: u64) -> Fault {
    Fault::ThrottleInDoubt { retry_after: Duration::from_secs(seconds), applied: false }
}

/// A storage whose workers delete messages together and one whose workers do not, with the operation that
/// they use.
fn deletions() -> [(Faulty, Operation); 2] {
    let storage = memory::open;
    [
        (Faulty::new(&storage()), Operation::DeleteAll),
        (Faulty::deleting_one_by_one(&storage()), Operation::Delete),
    ]
}

// I9
#[tokio::test(start_paused = true)]
async fn refused_deletion_is_not_repeated() {
    for (faulty, deletion) in deletions() {
        faulty.plan_always(deletion, Fault::Refuse(StoreErrorKind::Unauthorized));
        assert_eq!(run_one(&faulty, 1, 20).await.0, ["completed_uncertain"]);
        let calls = faulty.calls_of(Operation::Delete) + faulty.calls_of(Operation::DeleteAll);
        assert_eq!(calls, 1, "{deletion:?}");
    }
    // The storage asks for more patience than the lease has.
    for (faulty, deletion) in deletions() {
        faulty.plan(deletion, 1, not_applied(1000));
        assert_eq!(run_one(&faulty, 1, 60).await.0, ["completed"], "{deletion:?}");
    }
    // It was applied: nobody else can have deleted the message, which the lease still hides when the deletion
    // is tried again.
    for (faulty, deletion) in deletions() {
        let retry_after = Duration::from_secs(1000);
        faulty.plan(deletion, 1, Fault::ThrottleInDoubt { retry_after, applied: true });
        assert_eq!(run_one(&faulty, 1, 60).await.0, ["completed"], "{deletion:?}");
    }
    let faulty = Faulty::new(&memory::open());
    faulty.plan(Operation::Update, 1, not_applied(1000));
    assert_eq!(run_one(&faulty, 25, 60).await.0, ["completed"]);
    // A renewal that was applied has taken the receipt with it.
    let faulty = Faulty::new(&memory::open());
    let retry_after = Duration::from_secs(1000);
    faulty.plan(Operation::Update, 1, Fault::ThrottleInDoubt { retry_after, applied: true });
    assert_eq!(run_one(&faulty, 25, 1300).await.0, ["completed_uncertain", "duplicate"]);
}

// F9
#[tokio::test(start_paused = true)]
async fn delete_without_answer_then_not_found_is_success() {
    for (faulty, deletion) in deletions() {
        faulty.plan(deletion, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
        assert_eq!(run_one(&faulty, 1, 120).await.0, ["completed"]);
    }
}

// F9
#[tokio::test(start_paused = true)]
async fn unanswered_delete_is_retried_once_in_time() {
    for fault in [Fault::Hang, Fault::HangAfter] {
        for (faulty, deletion) in deletions() {
            faulty.plan(deletion, 1, fault);
            assert_eq!(run_one(&faulty, 1, 60).await.0, ["completed"], "{fault:?}");
        }
    }
}

// F10, F11
#[tokio::test(start_paused = true)]
async fn first_delete_refused_is_a_lost_lease() {
    for kind in [StoreErrorKind::MessageNotFound, StoreErrorKind::PopReceiptMismatch] {
        for (faulty, deletion) in deletions() {
            faulty.plan(deletion, 1, Fault::Refuse(kind));
            assert_eq!(run_one(&faulty, 1, 20).await.0, ["lease_lost"], "{kind:?}");
        }
    }
}
