//! A holder that was killed: on one host its lease is free as soon as its process has ended, and not before.

use std::time::Duration;

use jobqueue::leader::Leader;
use jobqueue::schedule::Schedule;
use jobqueue::{QueueMessage, Worker};
use jobqueue_tests::children::{Part, part};
use jobqueue_tests::say;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::{Place, signal, told, until_input_ends};

/// The longest there is: whoever waits for its end waits for 40 seconds at least.
const LONGEST: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "ticks", kind = "tick")]
struct Tick {}

/// Leads until it is killed.
#[tokio::test(flavor = "multi_thread")]
async fn part_of_a_holder() {
    let Some(input) = part("fail_over::killed::part_of_a_holder") else { return };
    let (_, name, storage) = told(&input).await;
    let leader = Leader::new(&storage, name).unwrap().lease(LONGEST);
    let leadership = leader.lead().await.unwrap();
    say!("leads");
    until_input_ends().await;
    drop(leadership);
}

/// The only worker with a schedule, until it is killed.
#[tokio::test(flavor = "multi_thread")]
async fn part_of_an_only_worker() {
    let Some(input) = part("fail_over::killed::part_of_an_only_worker") else { return };
    let (_, name, storage) = told(&input).await;
    let schedule = Schedule::every(Duration::from_secs(1)).name(name).lease(LONGEST);
    let make = || {
        say!("makes");
        Tick {}
    };
    let worker = Worker::builder(storage).schedule_by(schedule, make).build().unwrap();
    let _ = worker.run_until(until_input_ends()).await.unwrap();
}

// F76
#[tokio::test(flavor = "multi_thread")]
async fn lease_is_free_once_its_process_is_dead_but_not_while_it_is_stopped() {
    let place = Place::sqlite();
    let storage = place.open().await;
    let leader = Leader::new(&storage, place.name.clone()).unwrap().lease(LONGEST);
    let mut holder = Part::start("fail_over::killed::part_of_a_holder", place.input("leads"));
    assert_eq!(holder.says().as_deref(), Some("leads"));
    assert!(leader.try_lead().await.unwrap().is_none(), "the holder lives");
    signal("-STOP", holder.id());
    assert!(leader.try_lead().await.unwrap().is_none(), "a stopped process may go on");
    let _ = holder.kill();
    let leadership = leader.try_lead().await.unwrap().expect("the holder is dead");
    assert!(leadership.has_control());
}

// F50
#[tokio::test(flavor = "multi_thread")]
async fn schedule_of_the_only_process_goes_on_when_it_is_started_again() {
    let place = Place::sqlite();
    let mut first = Part::start("fail_over::killed::part_of_an_only_worker", place.input("first"));
    assert_eq!(first.says().as_deref(), Some("makes"));
    let _ = first.kill();
    let mut next = Part::start("fail_over::killed::part_of_an_only_worker", place.input("next"));
    let says = tokio::task::spawn_blocking(move || (next.says(), next));
    let (said, next) = timeout(LONGEST / 2, says).await.expect("it does not wait for the lease").unwrap();
    assert_eq!(said.as_deref(), Some("makes"));
    next.finish();
}
