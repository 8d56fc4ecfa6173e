//! Power cuts (F55).

use std::collections::BTreeSet;

use jobqueue::sqlite::Synchronous;
use jobqueue_tests::power::Event;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::oracle::{Replay, deliver};
use crate::scene::{Recording, Scene};

const TASKS: usize = 3;

pub(crate) fn cuts(usual: usize) -> usize {
    variable("JOBQUEUE_POWER_CUTS").unwrap_or(usual)
}

pub(crate) fn rounds(usual: usize) -> usize {
    variable("JOBQUEUE_POWER_ROUNDS").unwrap_or(usual)
}

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

pub(crate) fn random() -> StdRng {
    StdRng::seed_from_u64(jobqueue_tests::seed())
}

/// Returns moments just before and just after syncs, and others, as numbers of past events.
fn moments(recording: &Recording, count: usize, random: &mut StdRng) -> BTreeSet<usize> {
    let (events, from) = (&recording.events, recording.from);
    let is_sync = |event: &Event| matches!(event, Event::Sync(..) | Event::Delete(..) | Event::Truncate(..));
    let mut boundaries: Vec<_> =
        (from..events.len()).filter(|at| is_sync(&events[*at])).flat_map(|at| [at, at + 1]).collect();
    while boundaries.len() > count / 2 {
        boundaries.swap_remove(random.random_range(0..boundaries.len()));
    }
    let mut moments: BTreeSet<usize> = boundaries.into_iter().collect();
    while moments.len() < count.min(events.len() - from) {
        moments.insert(random.random_range(from..=events.len()));
    }
    moments
}

/// Cuts the power at `count` moments of the recording and opens the remaining files. Returns the problems.
pub(crate) fn cut(
    recording: &Recording,
    count: usize,
    synchronous: Synchronous,
    lies: bool,
    random: &mut StdRng,
) -> Vec<String> {
    let mut replay = Replay::new(recording.before.clone(), recording.histories.len());
    if lies {
        replay.disk.lie();
    }
    // Earlier output belongs to another run.
    recording.events[..recording.from].iter().for_each(|event| replay.disk.apply(event));
    let mut wrong = Vec::new();
    let mut done = recording.from;
    for moment in moments(recording, count, random) {
        recording.events[done..moment].iter().for_each(|event| replay.apply(event));
        done = moment;
        let scene = Scene::after_cut(&replay.disk.cut(random), synchronous);
        let checked = scene.open().and_then(|storage| {
            let found = scene.look(recording.histories.len());
            replay.check(&found, &recording.histories, synchronous)?;
            scene.block_on(deliver(&storage, &scene.clock, &found));
            Ok(())
        });
        wrong.extend(
            checked.err().map(|what| format!("after {moment} of {} events: {what}", recording.events.len())),
        );
    }
    wrong
}

// I1, F55
#[test]
fn power_cut_loses_nothing_acknowledged() {
    let mut random = random();
    let recording = Scene::new(Synchronous::Full).record(TASKS, 60, &mut random);
    let wrong = cut(&recording, cuts(150), Synchronous::Full, false, &mut random);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

// F55
#[test]
fn power_cut_with_synchronous_normal_loses_only_newest() {
    let mut random = random();
    let recording = Scene::new(Synchronous::Normal).record(TASKS, 60, &mut random);
    let wrong = cut(&recording, cuts(150), Synchronous::Normal, false, &mut random);
    assert!(wrong.is_empty(), "{wrong:#?}");
    // It is not the promise of FULL, and the difference is seen.
    let lost = cut(&recording, cuts(60), Synchronous::Full, false, &mut random);
    assert!(lost.iter().any(|what| what.contains("lost")), "{lost:#?}");
}

// The log then looks as if it were damaged, and FULL refuses it; the refusal says the way out.
// F55
#[test]
fn store_used_with_normal_reopens_after_a_power_cut() {
    let mut random = random();
    let recording = Scene::new(Synchronous::Normal).record(TASKS, 30, &mut random);
    let mut replay = Replay::new(recording.before.clone(), TASKS);
    let (mut done, mut refused) = (0, 0);
    for moment in moments(&recording, cuts(60), &mut random) {
        recording.events[done..moment].iter().for_each(|event| replay.apply(event));
        done = moment;
        let mut scene = Scene::after_cut(&replay.disk.cut(&mut random), Synchronous::Full);
        if let Err(error) = scene.open().map(drop) {
            assert!(error.contains("Synchronous::Normal"), "{error}");
            refused += 1;
            scene.synchronous = Synchronous::Normal;
            drop(scene.open().unwrap());
            scene.synchronous = Synchronous::Full;
        }
        let _storage = scene.open().unwrap();
        replay.check(&scene.look(TASKS), &recording.histories, Synchronous::Normal).unwrap();
    }
    assert!(refused > 0, "no cut tore anything");
}

// Checks that the tests above would notice.
// F55
#[test]
fn disk_that_lies_about_syncs_is_detected() {
    let mut random = random();
    let recording = Scene::new(Synchronous::Full).record(TASKS, 20, &mut random);
    let wrong = cut(&recording, cuts(60), Synchronous::Full, true, &mut random);
    assert!(wrong.len() > 20, "{wrong:#?}");
    assert!(wrong.iter().any(|what| what.contains("lost")), "{wrong:#?}");
}

// What the first cut, or a kill before a sync, leaves behind the end of the log stays there, and is neither
// found again nor taken for damage after the second cut.
// F55
#[test]
fn second_power_cut_during_recovery_is_harmless() {
    let mut random = random();
    let recording = Scene::new(Synchronous::Full).record(TASKS, 30, &mut random);
    let mut replay = Replay::new(recording.before.clone(), TASKS);
    let mut done = 0;
    for moment in moments(&recording, cuts(120), &mut random) {
        recording.events[done..moment].iter().for_each(|event| replay.apply(event));
        done = moment;
        let scene = if random.random_bool(0.5) {
            Scene::after_cut(&replay.disk.cut(&mut random), Synchronous::Full)
        } else {
            Scene::after_kill(replay.disk.clone(), Synchronous::Full)
        };
        let storage = scene.open().unwrap();
        let opened = scene.recorder.log().1.len();
        let found = scene.look(TASKS);
        replay.check(&found, &recording.histories, Synchronous::Full).unwrap();

        let tasks = scene.tasks(&storage, found, &mut random);
        let running = tasks.into_iter().map(|task| task.run(3));
        let ended = scene.block_on(futures_util::future::join_all(running));
        // Content that was seen after the store was opened must not vanish any more.
        let second = scene.recording(ended, opened);
        let wrong = cut(&second, 3, Synchronous::Full, false, &mut random);
        assert!(wrong.is_empty(), "after {moment}: {wrong:#?}");
    }
}
