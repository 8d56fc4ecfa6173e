//! Batches: the library holds under each combination of faults, and each property finds a planted defect.

use jobqueue_models::batch::{
    BATCH, BEGINS_ANEW, FORGETS_A_CHILD, NEVER_MISSING, NOT_BEFORE, NOTHING_LOST, WITH_A_CAUSE,
};
use jobqueue_models::check::{assert_fails, assert_holds};
use jobqueue_models::model::{Faults, Model, Scenario};
use jobqueue_models::store::Broken;

/// A scenario in which two children cannot end at the same time.
const ONE_WORKER: Scenario = Scenario { workers: 1, ..BATCH };

#[test]
fn continues_once_when_children_end_together() {
    assert_holds(BATCH, Faults::NONE);
}

// I1, I2, I12b
#[test]
fn continues_once_when_a_process_dies() {
    assert_holds(ONE_WORKER, Faults { crashes: 1, ..Faults::NONE });
}

// I1, I2, I12b
#[test]
fn continues_once_when_an_answer_is_lost() {
    assert_holds(ONE_WORKER, Faults { lost_answers: 1, ..Faults::NONE });
}

// I1, I2, I12b
#[test]
fn continues_once_when_a_lease_is_lost() {
    assert_holds(ONE_WORKER, Faults { lost_leases: 1, ..Faults::NONE });
}

// I12, I12b
#[test]
fn waits_for_dead_letters_and_their_redrive() {
    assert_holds(ONE_WORKER, Faults { deaths: 1, ..Faults::NONE });
}

#[test]
fn child_outside_of_the_batch_is_not_waited_for() {
    assert_fails(Model::new(FORGETS_A_CHILD, Faults::NONE), NOT_BEFORE);
}

#[test]
fn continuation_that_is_not_stored_is_missing() {
    assert_fails(Model::new(ONE_WORKER, Faults::NONE).broken(Broken::LosesPuts("books")), NEVER_MISSING);
}

#[test]
fn child_that_is_not_stored_is_lost() {
    assert_fails(Model::new(ONE_WORKER, Faults::NONE).broken(Broken::LosesPuts("pages")), NOTHING_LOST);
}

#[test]
fn batch_that_begins_again_under_another_id_runs_twice() {
    assert_fails(Model::new(BEGINS_ANEW, Faults::NONE), WITH_A_CAUSE);
}
