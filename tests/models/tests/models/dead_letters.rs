//! Dead letters: the design holds under each combination of faults, and each broken variant fails.

use jobqueue_models::check::{assert_fails, assert_holds};
use jobqueue_models::dead_letters::{
    ALL_END, DeadLetters, Design, Faults, NEVER_IN_NEITHER, ONLY_WHAT_IT_PUT_BACK, PAYLOAD_STAYS,
};

const TWO_DEATHS: Faults = Faults { crashes: 0, lost_answers: 0, lost_leases: 0, deaths: 2, purges: 0 };

fn assert_good(faults: Faults) {
    assert_holds(DeadLetters::new(Design::Good, faults));
}

fn assert_broken(design: Design, faults: Faults, property: &'static str) {
    assert_fails(DeadLetters::new(design, faults), property);
}

// I12
#[test]
fn redrive_keeps_jobs_that_die_again_meanwhile() {
    assert_good(Faults { deaths: 3, ..TWO_DEATHS });
}

// I1, I12
#[test]
fn no_job_is_lost_when_a_process_dies() {
    assert_good(Faults { crashes: 1, ..TWO_DEATHS });
    assert_good(Faults { deaths: 1, crashes: 2, ..TWO_DEATHS });
}

// I1, I12
#[test]
fn no_job_is_lost_when_an_answer_is_lost() {
    assert_good(Faults { lost_answers: 1, ..TWO_DEATHS });
    assert_good(Faults { deaths: 1, lost_answers: 1, crashes: 1, ..TWO_DEATHS });
}

// I1, I12
#[test]
fn no_job_is_lost_when_a_lease_is_lost() {
    assert_good(Faults { lost_leases: 1, ..TWO_DEATHS });
    assert_good(Faults { deaths: 1, lost_leases: 1, crashes: 1, ..TWO_DEATHS });
}

// I12a
#[test]
fn purge_takes_nothing_from_the_job_that_was_put_back() {
    assert_good(Faults { purges: 1, crashes: 1, ..TWO_DEATHS });
    assert_good(Faults { purges: 1, lost_leases: 1, ..TWO_DEATHS });
}

#[test]
fn deleting_before_copying_loses_the_job() {
    let faults = Faults { deaths: 1, crashes: 1, ..TWO_DEATHS };
    assert_broken(Design::DeleteBeforeCopy, faults, NEVER_IN_NEITHER);
    assert_broken(Design::DeleteBeforeCopy, faults, ALL_END);
}

#[test]
fn deleting_the_letter_before_putting_back_loses_the_job() {
    let faults = Faults { deaths: 1, crashes: 1, ..TWO_DEATHS };
    assert_broken(Design::DeleteBeforePutBack, faults, NEVER_IN_NEITHER);
    assert_broken(Design::DeleteBeforePutBack, faults, ALL_END);
}

// W-redrive, B19
#[test]
fn comparing_ids_alone_deletes_what_died_again() {
    assert_broken(Design::DuplicatesById, TWO_DEATHS, ONLY_WHAT_IT_PUT_BACK);
    assert_broken(Design::DuplicatesById, TWO_DEATHS, NEVER_IN_NEITHER);
}

// B20
#[test]
fn purge_that_deletes_payloads_takes_that_of_a_waiting_job() {
    let faults = Faults { deaths: 1, crashes: 1, purges: 1, ..TWO_DEATHS };
    assert_broken(Design::PurgeDeletesPayload, faults, PAYLOAD_STAYS);
}
