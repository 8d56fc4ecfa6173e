//! Claim checks: the library holds under each combination of faults, and each property finds a planted
//! defect.

use jobqueue_models::check::{assert_fails, assert_holds};
use jobqueue_models::claim_check::{CHECKPOINTS, NO_MISSING_BLOB, NO_ORPHAN, NOTHING_LOST, PAYLOADS};
use jobqueue_models::model::{Faults, Model};
use jobqueue_models::store::Broken;

// I1, I12a, I15
#[test]
fn uncertain_changes_take_no_blob_away() {
    assert_holds(CHECKPOINTS, Faults { lost_answers: 1, refusals: 1, ..Faults::NONE });
    assert_holds(CHECKPOINTS, Faults { late_puts: 1, ..Faults::NONE });
}

// I1, I12a, I15
#[test]
fn checkpoints_keep_their_blobs_in_the_next_delivery() {
    assert_holds(CHECKPOINTS, Faults { crashes: 1, ..Faults::NONE });
    assert_holds(CHECKPOINTS, Faults { lost_leases: 1, ..Faults::NONE });
}

// I12a, I15
#[test]
fn dead_letters_and_what_is_put_back_keep_their_blobs() {
    assert_holds(PAYLOADS, Faults { deaths: 1, ..Faults::NONE });
}

#[test]
fn blob_that_is_not_stored_is_missing() {
    assert_fails(Model::new(PAYLOADS, Faults::NONE).broken(Broken::LosesBlobs("payloads")), NO_MISSING_BLOB);
}

#[test]
fn blob_that_is_not_deleted_stays() {
    assert_fails(Model::new(PAYLOADS, Faults::NONE).broken(Broken::KeepsBlobs), NO_ORPHAN);
}

#[test]
fn message_that_is_not_stored_is_lost() {
    assert_fails(Model::new(PAYLOADS, Faults::NONE).broken(Broken::LosesPuts("jobs")), NOTHING_LOST);
}
