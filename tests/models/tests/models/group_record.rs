//! FIFO groups: the design holds under each combination of faults, and each broken variant fails.

use jobqueue_models::check::{assert_fails, assert_holds};
use jobqueue_models::group_record::{
    Design, Faults, GroupRecord, NO_WAIT, NOTHING_SWALLOWED, ORDER, REFUSED,
};

const ONE_JOB: Faults = Faults {
    jobs: 1,
    crashes: 0,
    lost_answers: 0,
    late_puts: 0,
    refusals: 0,
    lost_leases: 0,
    deaths: 0,
    redrives: 0,
    cancels: 0,
    resends: 0,
};
const TWO_JOBS: Faults = Faults { jobs: 2, ..ONE_JOB };

fn assert_good(faults: Faults) {
    assert_holds(GroupRecord::new(Design::Good, faults));
}

fn assert_broken(design: Design, faults: Faults, property: &'static str) {
    assert_fails(GroupRecord::new(design, faults), property);
}

// I1, I12b
#[test]
fn two_jobs_keep_their_order_when_a_process_dies() {
    assert_good(Faults { crashes: 1, ..TWO_JOBS });
}

// I1, I12b
#[test]
fn two_jobs_keep_their_order_when_an_answer_is_lost() {
    assert_good(Faults { lost_answers: 1, ..TWO_JOBS });
}

// I1, I12b
#[test]
fn two_jobs_keep_their_order_when_a_message_comes_late() {
    assert_good(Faults { late_puts: 1, ..TWO_JOBS });
}

// I1, I12b
#[test]
fn two_jobs_keep_their_order_when_a_lease_is_lost() {
    assert_good(Faults { lost_leases: 1, ..TWO_JOBS });
}

#[test]
fn two_jobs_keep_their_order_when_one_is_cancelled() {
    assert_good(Faults { cancels: 1, ..TWO_JOBS });
}

#[test]
fn two_jobs_keep_their_order_across_a_redrive() {
    assert_good(Faults { deaths: 1, redrives: 1, ..TWO_JOBS });
}

// I12, I12a
#[test]
fn a_dead_letter_and_its_redrive_lose_nothing() {
    assert_good(Faults { deaths: 2, redrives: 2, lost_leases: 1, ..ONE_JOB });
    assert_good(Faults { deaths: 1, redrives: 1, crashes: 2, resends: 1, ..ONE_JOB });
    assert_good(Faults { deaths: 1, redrives: 1, crashes: 1, late_puts: 1, ..ONE_JOB });
}

// I3, I4
#[test]
fn a_cancellation_is_true_or_did_not_happen() {
    assert_good(Faults { cancels: 1, lost_leases: 1, crashes: 1, resends: 1, ..ONE_JOB });
    assert_good(Faults { cancels: 1, late_puts: 1, crashes: 1, resends: 1, refusals: 1, ..ONE_JOB });
    assert_good(Faults { cancels: 1, lost_answers: 1, deaths: 1, redrives: 1, ..ONE_JOB });
}

#[test]
fn what_is_refused_after_a_late_put_is_not_called_refused() {
    assert_good(Faults { refusals: 1, late_puts: 1, resends: 1, lost_answers: 1, ..ONE_JOB });
}

// B4: the sender writes the position of a message that was dead-lettered meanwhile.
#[test]
fn message_before_record_blocks_the_key() {
    assert_broken(Design::MessageBeforeRecord, Faults { deaths: 1, ..ONE_JOB }, NO_WAIT);
}

#[test]
fn announcement_removed_by_time_alone_breaks_the_order() {
    assert_broken(Design::RemovedByTime, TWO_JOBS, ORDER);
}

// D1
#[test]
fn matching_by_message_id_swallows_an_acknowledged_job() {
    assert_broken(Design::MatchedByMessageId, ONE_JOB, NOTHING_SWALLOWED);
}

#[test]
fn deleting_the_copy_that_was_not_elected_loses_a_redriven_job() {
    assert_broken(Design::OtherCopyAbsorbs, Faults { deaths: 1, redrives: 1, ..ONE_JOB }, NOTHING_SWALLOWED);
}

#[test]
fn confirming_the_entry_of_somebody_else_blocks_the_key() {
    assert_broken(
        Design::ConfirmByIdentity,
        Faults { crashes: 1, deaths: 1, redrives: 1, ..ONE_JOB },
        NO_WAIT,
    );
}

// B24
#[test]
fn cancelling_by_deletion_alone_runs_the_other_copy() {
    assert_broken(Design::CancelByDeletion, Faults { cancels: 1, late_puts: 1, ..ONE_JOB }, REFUSED);
}
