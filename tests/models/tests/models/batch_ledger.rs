//! Batches: the design holds under each combination of faults, and each broken variant fails.

use jobqueue_models::batch_ledger::{
    BatchLedger, Design, Faults, NEVER_MISSING, NOT_BEFORE, NOTHING_LOST, WITH_A_CAUSE,
};
use jobqueue_models::check::{assert_fails, assert_holds};

const NONE: Faults =
    Faults { crashes: 0, lost_answers: 0, lost_leases: 0, deaths: 0, strays: 0, is_sent: false };
const SENT: Faults = Faults { is_sent: true, ..NONE };

fn assert_good(faults: Faults) {
    assert_holds(BatchLedger::new(Design::Good, faults));
}

fn assert_broken(design: Design, faults: Faults, property: &'static str) {
    assert_fails(BatchLedger::new(design, faults), property);
}

// I1, I2, I12b
#[test]
fn continues_once_when_a_process_dies() {
    assert_good(Faults { crashes: 1, ..NONE });
    assert_good(Faults { crashes: 2, ..SENT });
}

// I1, I2, I12b
#[test]
fn continues_once_when_an_answer_is_lost() {
    assert_good(Faults { lost_answers: 1, ..NONE });
    assert_good(Faults { lost_answers: 1, crashes: 1, ..SENT });
}

// I1, I2, I12b
#[test]
fn continues_once_when_a_lease_is_lost() {
    assert_good(Faults { lost_leases: 1, ..NONE });
    assert_good(Faults { lost_leases: 1, crashes: 1, ..SENT });
}

// I12, I12b
#[test]
fn waits_for_dead_letters_and_their_redrive() {
    assert_good(Faults { deaths: 1, ..NONE });
    assert_good(Faults { deaths: 1, crashes: 1, ..SENT });
    assert_good(Faults { deaths: 1, lost_leases: 1, ..SENT });
}

#[test]
fn who_only_says_that_it_is_a_child_changes_nothing() {
    assert_good(Faults { strays: 1, ..NONE });
}

// D2
#[test]
fn counting_markers_continues_too_early() {
    assert_broken(Design::Counting, Faults { strays: 1, ..NONE }, NOT_BEFORE);
}

#[test]
fn children_that_no_plan_names_are_waited_for_in_vain() {
    assert_broken(Design::ChildrenBeforePlan, NONE, NEVER_MISSING);
}

#[test]
fn end_of_a_duplicate_that_counts_continues_too_early() {
    assert_broken(Design::DuplicateMarks, Faults { lost_answers: 1, ..NONE }, NOT_BEFORE);
}

// B26
#[test]
fn deleting_the_unelected_copy_loses_a_redriven_child() {
    assert_broken(Design::DuplicateAbsorbed, Faults { deaths: 1, ..NONE }, NOTHING_LOST);
}

#[test]
fn two_that_end_before_they_mark_continue_never() {
    assert_broken(Design::ContinuationBeforeMarker, NONE, NEVER_MISSING);
}

#[test]
fn deleting_the_message_because_of_a_claim_continues_never() {
    assert_broken(Design::TrustsClaim, Faults { crashes: 1, lost_leases: 1, ..NONE }, NEVER_MISSING);
}

#[test]
fn two_that_end_together_continue_twice_without_a_claim() {
    assert_broken(Design::NoClaim, NONE, WITH_A_CAUSE);
}
