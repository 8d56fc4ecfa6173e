//! Claim checks: the design holds under each combination of faults, and each broken variant fails.

use jobqueue_models::check::{assert_fails, assert_holds};
use jobqueue_models::claim_check::{ClaimCheck, Design, Faults, NO_MISSING_BLOB, NO_ORPHAN};

fn assert_good(faults: Faults) {
    assert_holds(ClaimCheck::new(Design::Good, faults));
}

fn assert_broken(design: Design, faults: Faults) {
    assert_fails(ClaimCheck::new(design, faults), NO_MISSING_BLOB);
}

// I12a, I15
#[test]
fn uncertain_changes_take_no_blob_away() {
    assert_good(Faults { lost_answers: 2, refusals: 2, checkpoints: 2, ..Faults::default() });
    assert_good(Faults {
        late_puts: 1,
        lost_answers: 1,
        refusals: 1,
        lost_leases: 1,
        checkpoints: 1,
        ..Faults::default()
    });
}

// I12a, I15
#[test]
fn dead_letters_and_what_is_put_back_keep_their_blobs() {
    assert_good(Faults { deaths: 2, crashes: 1, checkpoints: 2, purges: 1, ..Faults::default() });
    assert_good(Faults { deaths: 2, lost_leases: 1, checkpoints: 1, purges: 1, ..Faults::default() });
}

// I15
#[test]
fn sweep_takes_only_what_nothing_refers_to() {
    assert_good(Faults { sweeps: 2, deaths: 1, lost_answers: 1, checkpoints: 1, ..Faults::default() });
    assert_good(Faults { sweeps: 1, deaths: 2, ..Faults::default() });
    assert_good(Faults {
        sweeps: 1,
        deaths: 1,
        crashes: 1,
        lost_leases: 1,
        checkpoints: 1,
        ..Faults::default()
    });
    assert_good(Faults { sweeps: 1, late_puts: 1, refusals: 1, crashes: 1, ..Faults::default() });
}

#[test]
fn message_before_blob_refers_to_nothing() {
    assert_broken(Design::MessageBeforeBlob, Faults::default());
}

// Design 3: one certainty.
#[test]
fn last_error_that_decides_a_send_takes_its_payload() {
    assert_broken(Design::LastErrorDecides, Faults { lost_answers: 1, refusals: 1, ..Faults::default() });
}

// B2: an update without an answer, then throttled; the send cannot fail here.
#[test]
fn last_error_that_decides_a_checkpoint_takes_it_away() {
    let model = |checkpoints| {
        let faults =
            Faults { lost_answers: 1, refusals: 1, checkpoints, is_stored: true, ..Faults::default() };
        ClaimCheck::new(Design::LastErrorDecides, faults)
    };
    assert_holds(model(0));
    assert_fails(model(1), NO_MISSING_BLOB);
}

// B1
#[test]
fn ending_a_duplicate_with_its_blob_breaks_the_other() {
    assert_broken(Design::DuplicateDeletesBlob, Faults { lost_answers: 1, ..Faults::default() });
}

// B21: the message comes back after a crash, is dead-lettered again, and its second letter is purged.
#[test]
fn letter_that_shares_blobs_with_its_message_loses_them() {
    assert_broken(
        Design::LetterSharesBlobs,
        Faults { deaths: 1, crashes: 1, purges: 1, ..Faults::default() },
    );
}

// B20
#[test]
fn purging_what_was_put_back_with_its_blobs_takes_them_away() {
    assert_broken(
        Design::RedriveSharesBlobs,
        Faults { deaths: 1, crashes: 1, purges: 1, ..Faults::default() },
    );
}

#[test]
fn without_a_sweep_the_blob_of_a_dead_sender_stays() {
    assert_fails(ClaimCheck::new(Design::NeverSwept, Faults { crashes: 1, ..Faults::default() }), NO_ORPHAN);
}

#[test]
fn sweeping_by_age_alone_takes_blobs_of_waiting_jobs() {
    assert_broken(Design::SweptByAge, Faults { sweeps: 1, ..Faults::default() });
}
