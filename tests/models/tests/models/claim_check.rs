//! Claim checks: the library holds under each combination of faults, and each property finds a planted defect.

use jobqueue_models::check::{assert_fails, assert_holds};
use jobqueue_models::claim_check::{CHECKPOINTS, NO_MISSING_BLOB, NO_ORPHAN, NOTHING_LOST, PAYLOADS};
use jobqueue_models::model::{Faults, Model};
use jobqueue_models::store::Broken;

const NONE: Faults =
    Faults { crashes: 0, lost_answers: 0, late_puts: 0, refusals: 0, lost_leases: 0, deaths: 0, leaps: 0 };

// I1, I12a, I15
#[test]
fn uncertain_changes_take_no_blob_away() {
    assert_holds(CHECKPOINTS, Faults { lost_answers: 1, refusals: 1, ..NONE });
    assert_holds(CHECKPOINTS, Faults { late_puts: 1, ..NONE });
}

// I1, I12a, I15
#[test]
fn checkpoints_keep_their_blobs_in_the_next_delivery() {
    assert_holds(CHECKPOINTS, Faults { crashes: 1, ..NONE });
    assert_holds(CHECKPOINTS, Faults { lost_leases: 1, ..NONE });
}

// I12a, I15
#[test]
fn dead_letters_and_what_is_put_back_keep_their_blobs() {
    assert_holds(PAYLOADS, Faults { deaths: 1, ..NONE });
}

#[test]
fn a_blob_that_is_not_stored_is_missing() {
    assert_fails(Model::new(PAYLOADS, NONE).broken(Broken::LosesBlobs("payloads")), NO_MISSING_BLOB);
}

#[test]
fn a_blob_that_is_not_deleted_stays() {
    assert_fails(Model::new(PAYLOADS, NONE).broken(Broken::KeepsBlobs), NO_ORPHAN);
}

#[test]
fn a_message_that_is_not_stored_is_lost() {
    assert_fails(Model::new(PAYLOADS, NONE).broken(Broken::LosesPuts("jobs")), NOTHING_LOST);
}
