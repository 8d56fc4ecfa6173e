//! A namespace in the place of the emulator, and the tests that cannot run there.

use std::env;

/// The variable with the connection string of a namespace.
pub(super) const VARIABLE: &str = "JOBQUEUE_TEST_SERVICEBUS";

/// The value of [`VARIABLE`] that stands for an emulator behind the gateway.
pub(super) const EMULATOR: &str = "emulator";

/// The tests that cannot run on a namespace, each with the reason.
pub const EXCLUDED: &[(&str, &str)] = &[
    ("idling::links_that_the_service_detaches_after_ten_minutes_are_opened_again", HOURS),
    ("idling::a_link_on_which_something_passes_is_not_detached", HOURS),
    ("idling::a_worker_that_idles_for_hours_takes_the_next_job_at_once", HOURS),
    ("idling::a_token_that_ran_out_unnoticed_is_replaced", HOURS),
    ("long_held::the_link_of_a_delayed_session_is_not_idle", HOURS),
    ("long_held::the_link_of_a_message_in_hand_is_not_idle", HOURS),
    ("dead_letters::a_message_that_cannot_be_decoded_is_a_dead_letter_and_hides_no_other", EMULATOR_ONLY),
    ("leftovers::texts_stay_while_a_message_cannot_be_decoded", EMULATOR_ONLY),
    ("miscounts::payloads_stay_while_a_queue_that_counts_as_empty_has_a_message", EMULATOR_ONLY),
    ("miscounts::payloads_stay_while_another_process_holds_a_dead_letter", EMULATOR_ONLY),
    ("miscounts::a_former_shard_that_counts_as_empty_keeps_its_delayed_message", EMULATOR_ONLY),
    ("late_answers::request_without_an_outcome_holds_up_no_other", EMULATOR_ONLY),
    ("locks::a_copy_comes_first_where_there_are_no_transactions", "it needs the tier Basic"),
    ("locks::a_lock_that_is_lost_with_its_link_revokes_the_lease_at_once", LOCKS),
    ("dead_letters::a_worker_until_idle_goes_on_behind_a_message_that_cannot_be_decoded", EMULATOR_ONLY),
    ("late_answers::outcome_of_a_send_is_told_while_another_waits_for_credit", EMULATOR_ONLY),
    ("many_queues::a_connection_that_has_all_its_channels_is_followed_by_another", EMULATOR_ONLY),
    ("locks::a_delivery_that_the_service_does_not_count_finds_the_saved_text", LOCKS),
    ("no_sends::queue_that_takes_no_sends_takes_jobs_back", EMULATOR_ONLY),
    ("no_sends::attempts_of_a_queue_that_takes_no_sends_are_counted", EMULATOR_ONLY),
    ("no_sends::jobs_behind_those_that_another_process_put_back_in_their_places_run", EMULATOR_ONLY),
    ("put_backs::put_backs_go_on_after_an_idle_time", HOURS),
    ("put_backs::a_put_back_whose_lock_was_lost_with_the_link_copies_nothing", LOCKS),
    (
        "servicebus::service_bus_answers_as_memory_does",
        "it compares two clocks to the moment, and passes days; the namespace has to be an emulator whose time moves",
    ),
];

/// The reason of tests of faults that the gateway cannot plant, not even before an emulator.
const EMULATOR_ONLY: &str = "only the emulator itself can do that";

/// The reason of tests that take too long.
const HOURS: &str = "it waits for half an hour to hours of the service's time";

/// The reason of tests of locks that end with their link.
const LOCKS: &str = "it needs a service that drops locks with each link, or with none";

/// Returns the value of the variable.
pub(super) fn given() -> Option<String> {
    env::var(VARIABLE).ok().filter(|value| !value.is_empty())
}

/// Returns the connection string of the namespace that the environment names, unless that is an emulator.
pub fn namespace() -> Option<String> {
    given().filter(|value| value != EMULATOR)
}

/// Returns whether a test is in [`EXCLUDED`] and runs on a real namespace, whose clock cannot be moved;
/// prints the reason then.
///
/// # Panics
/// When the list does not have that test: a guard without a reason is a mistake.
pub fn is_excluded(test: &str) -> bool {
    let found = EXCLUDED.iter().find(|(name, _)| *name == test);
    let (_, reason) =
        found.unwrap_or_else(|| panic!("{test} is not among the tests that cannot run on a namespace"));
    let is_excluded = namespace().is_some() || reason == &EMULATOR_ONLY && given().is_some();
    if is_excluded {
        println!("{test} does not run on a namespace: {reason}");
    }
    is_excluded
}
