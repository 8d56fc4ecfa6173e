//! F50, F83: the process that leads a schedule is killed in the middle of a slot.

use std::time::Duration;

use jobqueue::schedule::Schedule;
use jobqueue::storage::Operation;
use jobqueue::{QueueMessage, Worker};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::children::{Part, part};
use jobqueue_tests::say;
use serde::{Deserialize, Serialize};

use super::{LEASE, Place, at_once, signal, told, until_input_ends};

const PART: &str = "fail_over::schedule::part_of_a_schedule";
/// The slot in which the leader dies, counted from 1.
const DEADLY: u64 = 3;

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "ticks", kind = "tick")]
struct Tick {
    by: String,
}

/// Runs a worker with a schedule and without handlers. Its role says when it dies.
#[tokio::test(flavor = "multi_thread")]
async fn part_of_a_schedule() {
    let Some(input) = part(PART) else { return };
    let (role, name, storage) = told(&input).await;
    // Quiet: its processes run in real time.
    let faulty = Faulty::quiet(&storage);
    let dies = role.clone();
    faulty.on(Operation::Put, move |call| match dies.as_str() {
        "dies-before" if call.nth == DEADLY => die(),
        "dies-after" if call.nth == DEADLY => {
            // Performed and never answered; dead when it is certainly performed.
            std::thread::spawn(|| {
                std::thread::sleep(Duration::from_millis(200));
                die()
            });
            Some(Fault::HangAfter)
        }
        _ => None,
    });
    let schedule = Schedule::every(Duration::from_secs(1)).name(name).lease(LEASE);
    let make = move || {
        say!("makes");
        Tick { by: role.clone() }
    };
    let worker = Worker::builder(faulty.storage()).schedule_by(schedule, make).build().unwrap();
    assert!(worker.run_until(until_input_ends()).await.unwrap().is_clean());
}

fn die() -> ! {
    signal("-KILL", std::process::id());
    std::process::abort()
}

/// Returns the slots in the queue in order, in seconds since 1970, each with its sender.
async fn slots(place: &Place) -> Vec<(i64, String)> {
    let storage = place.open().await;
    let queue = storage.queue::<Tick>().await.unwrap();
    let mut slots = Vec::new();
    while let Some(delivery) = queue.receive(Duration::ZERO).await.unwrap() {
        let id = delivery.info().id.to_string();
        if let Some(slot) = id.strip_prefix(&format!("schedule/{}/", place.name)) {
            let slot: jiff::Timestamp = slot.parse().unwrap();
            slots.push((slot.as_second(), delivery.message().by.clone()));
        }
        delivery.complete().await.unwrap();
    }
    slots.sort();
    slots
}

async fn every_slot_is_sent_once(place: Place, how: &str) {
    let mut victim = Part::start(PART, place.input(how));
    assert_eq!(victim.says().as_deref(), Some("makes"));
    let mut successor = Part::start(PART, place.input("lives"));
    // The first it makes, and some more.
    for _ in 0..DEADLY + 2 {
        assert_eq!(successor.says().as_deref(), Some("makes"));
    }
    let died = victim.kill();
    assert_eq!(died.len() as u64, DEADLY - 1, "{died:?}");
    successor.finish();
    let slots = slots(&place).await;
    let (first, last) = (slots.first().unwrap().0, slots.last().unwrap().0);
    let times: Vec<i64> = slots.iter().map(|(slot, _)| *slot).collect();
    assert_eq!(times, Vec::from_iter(first..=last), "skipped or doubled: {slots:?}");
    let by_victim = if how == "dies-after" { DEADLY } else { DEADLY - 1 };
    assert_eq!(slots.iter().filter(|(_, by)| by == how).count() as u64, by_victim, "{slots:?}");
}

// F50, F83
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn leader_killed_within_a_slot_skips_and_doubles_none() {
    let cases = [
        (Place::sqlite(), "dies-before"),
        (Place::sqlite(), "dies-after"),
        (Place::azurite(), "dies-before"),
        (Place::azurite(), "dies-after"),
    ];
    at_once(cases.map(|(place, how)| every_slot_is_sent_once(place, how))).await;
}
