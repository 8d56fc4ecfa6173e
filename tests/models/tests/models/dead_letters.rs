//! Dead letters: the library holds under each combination of faults, and each property finds a planted
//! defect.

use jobqueue_models::check::{assert_fails, assert_holds};
use jobqueue_models::dead_letters::{ALL_END, DEAD_LETTERS, NEVER_IN_NEITHER, WITH_A_CAUSE};
use jobqueue_models::model::{Faults, Model};
use jobqueue_models::store::Broken;

const DEATH: Faults = Faults { deaths: 1, ..Faults::NONE };

// I12
#[test]
fn redrive_keeps_jobs_that_die_again_meanwhile() {
    assert_holds(DEAD_LETTERS, Faults { deaths: 3, ..Faults::NONE });
}

// I1, I12
#[test]
fn no_job_is_lost_when_a_process_dies() {
    assert_holds(DEAD_LETTERS, Faults { crashes: 1, ..DEATH });
}

// I1, I12
#[test]
fn no_job_is_lost_when_an_answer_is_lost() {
    assert_holds(DEAD_LETTERS, Faults { lost_answers: 1, ..DEATH });
}

// I1, I12
#[test]
fn no_job_is_lost_when_a_lease_is_lost() {
    assert_holds(DEAD_LETTERS, Faults { lost_leases: 1, ..DEATH });
}

#[test]
fn letter_that_is_not_stored_loses_the_job() {
    let broken = || Model::new(DEAD_LETTERS, DEATH).broken(Broken::LosesPuts("jobs-poison"));
    assert_fails(broken(), NEVER_IN_NEITHER);
    assert_fails(broken(), ALL_END);
}

#[test]
fn put_that_stores_two_messages_runs_the_job_twice() {
    assert_fails(Model::new(DEAD_LETTERS, Faults::NONE).broken(Broken::DoublesPuts("jobs")), WITH_A_CAUSE);
}
