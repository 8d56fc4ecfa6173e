//! Planted defects of schedules.

use std::time::Duration;

use jobqueue_testing::world::{Entry, Incident, World};

use super::{Defect, assert_reported, findings, job, one, plan};
use crate::mix::action::{Action, ActionKind};
use crate::mix::checks::{Evidence, schedule};
use crate::mix::diary::Diary;
use crate::mix::features::Feature;
use crate::mix::spec::Script;

#[test]
fn slot_that_is_left_out_is_reported() {
    let slots = |seconds: [u32; 3]| {
        let slot = |second| format!("schedule/ticks/2026-01-01T00:{:02}:{:02}Z", second / 60, second % 60);
        seconds.map(slot)
    };
    let world = World::builder().judge(move |world| async move {
        let diary = Diary::new(&one(Script::default()), false);
        let evidence = Evidence { world, history: Vec::new(), diary, dead: Default::default() };
        assert!(schedule::check(&evidence, &slots([0, 20, 40])).is_empty());
        schedule::check(&evidence, &slots([0, 20, 60]))
    });
    let reported: Vec<_> = world.run(1).findings.into_iter().map(|found| found.what).collect();
    assert!(reported.contains(&"a slot of a schedule is left out"), "{reported:?}");
}

#[test]
fn schedule_that_does_not_begin_or_goes_no_further_or_repeats_a_slot_is_reported() {
    let long = Script { millis: 50_000, ..Script::default() };
    let plan = plan(&[Feature::Schedule], [job("j1.".to_owned(), long)]);
    let never = Defect::of_facts(|history| {
        history.iter_mut().filter(|entry| is_slot(entry)).for_each(|entry| entry.job = None);
    });
    assert_reported(&plan, never, "a schedule does not begin");
    let stops = Defect::of_facts(|history| {
        let first = history.iter().find(|entry| is_slot(entry)).and_then(|entry| entry.job.clone());
        let later = history.iter_mut().filter(|entry| is_slot(entry) && entry.job != first);
        later.for_each(|entry| entry.job = None);
    });
    assert_reported(&plan, stops.clone(), "a schedule goes no further");
    // The only worker is frozen after the first slots: until all workers are asked to stop, and then for a
    // shorter time.
    let frozen = |seconds| {
        let mut plan = plan.clone();
        plan.features.push(Feature::Freezes);
        let freeze = Incident::Freeze { worker: 0, time: Duration::from_secs(seconds) };
        let at = Duration::from_secs(51);
        plan.actions.push(Action { at, actor: 0, what: ActionKind::Incident(freeze) });
        plan
    };
    assert!(findings(&frozen(100), Defect::of_notes([])).is_empty());
    assert_reported(&frozen(5), stops, "a schedule goes no further");
    let twice = Defect::of_facts(|history| {
        let first = history.iter().find(|entry| is_slot(entry)).and_then(|entry| entry.job.clone());
        history.iter_mut().filter(|entry| is_slot(entry)).for_each(|entry| entry.job.clone_from(&first));
    });
    assert_reported(&plan, twice, "a slot of a schedule is sent twice");
}

fn is_slot(entry: &Entry) -> bool {
    entry.job.as_deref().is_some_and(|job| job.starts_with("schedule/ticks/"))
}
