//! Messages in order: the library holds under each fault, and each property finds a planted defect.

use jobqueue_models::check::{assert_fails, assert_holds};
use jobqueue_models::model::{Faults, Model, Scenario};
use jobqueue_models::order::{
    ALONE, CANCELLED, NEVER_RUNS, NO_WAIT, NOT_IN_ORDER, NOTHING_SWALLOWED, ORDER, TWO_JOBS,
};
use jobqueue_models::store::Broken;

/// Two jobs, delivered one at a time.
const ONE_WORKER: Scenario = Scenario { workers: 1, ..TWO_JOBS };

/// Two jobs, delivered concurrently once both are sent.
const SENT_BEFORE: Scenario = Scenario { sends_first: true, ..TWO_JOBS };

// I21
#[test]
fn two_workers_keep_the_order() {
    assert_holds(TWO_JOBS, Faults::NONE);
}

// I1, I12b, I21; audit 4, E7
#[test]
fn two_workers_keep_the_order_when_an_answer_is_lost() {
    assert_holds(SENT_BEFORE, Faults { lost_answers: 1, ..Faults::NONE });
}

// I1, I12b, I21; audit 4, E7
#[test]
fn two_workers_keep_the_order_when_a_request_is_refused() {
    assert_holds(SENT_BEFORE, Faults { refusals: 1, ..Faults::NONE });
}

// I12, I12a, I21; audit 4, E7
#[test]
fn two_workers_keep_the_order_when_a_job_dies_or_comes_late() {
    assert_holds(SENT_BEFORE, Faults { deaths: 1, ..Faults::NONE });
    assert_holds(SENT_BEFORE, Faults { late_puts: 1, ..Faults::NONE });
}

// I1, I12b, I21
#[test]
fn two_jobs_keep_their_order_when_a_process_dies() {
    assert_holds(ONE_WORKER, Faults { crashes: 1, ..Faults::NONE });
}

// I1, I12b
#[test]
fn two_jobs_keep_their_order_when_an_answer_is_lost() {
    assert_holds(ONE_WORKER, Faults { lost_answers: 1, ..Faults::NONE });
    assert_holds(ONE_WORKER, Faults { refusals: 1, ..Faults::NONE });
}

// I1, I12b
#[test]
fn two_jobs_keep_their_order_when_a_lease_is_lost() {
    assert_holds(ONE_WORKER, Faults { lost_leases: 1, ..Faults::NONE });
}

// I1, I12b
#[test]
fn two_jobs_keep_their_order_when_a_message_comes_late() {
    assert_holds(ONE_WORKER, Faults { late_puts: 1, ..Faults::NONE });
    assert_holds(ONE_WORKER, Faults { leaps: 1, ..Faults::NONE });
}

// I12, I12a
#[test]
fn dead_letter_and_its_redrive_lose_nothing() {
    assert_holds(ONE_WORKER, Faults { deaths: 1, ..Faults::NONE });
}

// I3, I4
#[test]
fn cancellation_is_true_or_did_not_happen() {
    assert_holds(CANCELLED, Faults { crashes: 1, ..Faults::NONE });
    assert_holds(CANCELLED, Faults { lost_answers: 1, ..Faults::NONE });
    assert_holds(CANCELLED, Faults { refusals: 1, ..Faults::NONE });
    assert_holds(CANCELLED, Faults { lost_leases: 1, ..Faults::NONE });
    assert_holds(CANCELLED, Faults { deaths: 1, ..Faults::NONE });
    assert_holds(CANCELLED, Faults { leaps: 1, ..Faults::NONE });
}

#[test]
fn jobs_that_do_not_ask_for_their_order_have_none() {
    assert_fails(Model::new(NOT_IN_ORDER, Faults::NONE), ORDER);
    assert_fails(Model::new(NOT_IN_ORDER, Faults::NONE), ALONE);
}

#[test]
fn message_that_is_not_stored_is_swallowed() {
    let broken = || Model::new(ONE_WORKER, Faults::NONE).broken(Broken::LosesPuts("jobs"));
    assert_fails(broken(), NOTHING_SWALLOWED);
    assert_fails(broken(), NO_WAIT);
}

#[test]
fn cancellation_with_a_stale_receipt_lets_the_job_run() {
    assert_fails(Model::new(CANCELLED, Faults::NONE).broken(Broken::AcceptsAnyReceipt), NEVER_RUNS);
}
