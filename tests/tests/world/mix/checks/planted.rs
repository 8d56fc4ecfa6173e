//! Planted defects: for each check of the mix, shows that it reports the defect that it is for.
//!
//! A sound world performs a small plan. Then the evidence is changed as a defect would have left it, for
//! example by an end that never happened, or by a note that a handler would have written. The unchanged
//! evidence must have no finding.
//!
//! Two defects are not planted, because their checks read the storage itself: a search of the journal that
//! misses jobs, and blobs that a sweep leaves.

mod schedule_defects;

use std::sync::Arc;
use std::time::Duration;

use jobqueue::storage::{BlobName, ContainerName, Operation};
use jobqueue_testing::faults::Fault;
use jobqueue_testing::world::{Entry, Fact, Finding, World};

use super::{
    Evidence, batches, blobs, cancelled, is_of, journal, operator, order, progress, schedule, types, unique,
};
use crate::mix::action::{Action, ActionKind};
use crate::mix::backend::Backend;
use crate::mix::diary::{Diary, Note};
use crate::mix::features::Feature;
use crate::mix::plan::Plan;
use crate::mix::run;
use crate::mix::spec::{Fan, Script, Spec};

/// A change of the evidence: first notes are added, then facts are changed.
#[derive(Clone)]
struct Defect {
    notes: Vec<Note>,
    facts: fn(&mut [Entry]),
}

impl Defect {
    fn of_notes(notes: impl IntoIterator<Item = Note>) -> Self {
        Self { notes: notes.into_iter().collect(), facts: |_| {} }
    }

    fn of_facts(facts: fn(&mut [Entry])) -> Self {
        Self { notes: Vec::new(), facts }
    }
}

pub(super) fn plan(features: &[Feature], actions: impl IntoIterator<Item = ActionKind>) -> Plan {
    let at = |number: usize| Duration::from_secs(number as u64);
    let actions = actions.into_iter().enumerate();
    let actions = actions.map(|(number, what)| Action { at: at(number), actor: 0, what }).collect();
    let features = features.to_vec();
    Plan { seed: 1, noise: 1, features, workers: 1, faults: 0.0, spread: (1, 1), actions }
}

fn job(id: String, script: Script) -> ActionKind {
    ActionKind::Send(Spec {
        id,
        script,
        bytes: 10,
        header: 0,
        key: None,
        in_order: false,
        delay: None,
        ttl: None,
        resend: false,
    })
}

fn fan(id: &str, part: Script) -> Fan {
    Fan {
        id: id.to_owned(),
        children: vec![part],
        options: Vec::new(),
        interrupted: false,
        goes_on: false,
        join: Script::default(),
    }
}

fn one(script: Script) -> Plan {
    plan(&[], [job("j1.".to_owned(), script)])
}

fn in_order(number: u32) -> ActionKind {
    let ActionKind::Send(mut spec) = job(format!("j{number}."), Script { millis: 300, ..Script::default() })
    else {
        unreachable!("it is a send");
    };
    (spec.key, spec.in_order) = (Some("a".to_owned()), true);
    ActionKind::Send(spec)
}

fn batch() -> Plan {
    plan(&[Feature::Batches], [ActionKind::Batch(fan("b1-", Script::default()))])
}

async fn judged(world: World, diary: Diary, defect: Defect) -> Vec<Finding> {
    let node: Arc<str> = "planted".into();
    defect.notes.into_iter().for_each(|note| diary.note(&world, &node, note));
    let (dead, mut findings) = blobs::dead_letters(&world).await;
    let mut history = world.history();
    (defect.facts)(&mut history);
    let evidence = Evidence { world: world.clone(), history, diary, dead };
    let checks = [
        order::check,
        batches::check,
        unique::check,
        cancelled::check,
        progress::check,
        operator::check,
        types::check,
    ];
    for check in checks {
        findings.extend(check(&evidence));
    }
    findings.extend(schedule::check(&evidence, &[]));
    findings.extend(journal::check(&world, &evidence).await);
    findings
}

fn findings(plan: &Plan, defect: Defect) -> Vec<&'static str> {
    let diary = Diary::new(plan, false);
    let world = run::world(&Backend::AzureLike, plan, &diary);
    let world = world.judge(move |world| judged(world, diary.clone(), defect.clone()));
    world.run_with(plan.noise, &[]).findings.into_iter().map(|found| found.what).collect()
}

/// Asserts that the evidence of a plan has no findings, and has the finding `what` with the defect.
#[track_caller]
fn assert_reported(plan: &Plan, defect: Defect, what: &str) {
    let sound = findings(plan, Defect::of_notes([]));
    assert!(sound.is_empty(), "without the defect: {sound:?}");
    let reported = findings(plan, defect);
    assert!(reported.contains(&what), "{what} is reported as {reported:?}");
}

/// Removes the ends of a job, as if its handler ran on.
fn never_ends(history: &mut [Entry], job: &str) {
    for entry in history.iter_mut().filter(|entry| is_of(entry, job)) {
        if matches!(entry.fact, Fact::RunEnded { .. } | Fact::Settled { .. }) {
            entry.fact = Fact::Noted("never was".to_owned());
        }
    }
}

fn never_runs(history: &mut [Entry], job: &str) {
    never_ends(history, job);
    for entry in history.iter_mut().filter(|entry| is_of(entry, job)) {
        if matches!(entry.fact, Fact::RunBegan { .. }) {
            entry.fact = Fact::Noted("never was".to_owned());
        }
    }
}

#[test]
fn overtaking_in_order_is_reported() {
    let plan = plan(&[Feature::InOrder], [in_order(1), in_order(2)]);
    let defect = Defect::of_facts(|history| never_ends(history, "j1."));
    assert_reported(&plan, defect.clone(), "a job overtakes another of its key");
    assert_reported(&plan, defect, "two jobs of a key run at once");
}

#[test]
fn batch_that_goes_on_early_or_never_is_reported() {
    let early = Defect::of_facts(|history| never_ends(history, "b1-/0"));
    assert_reported(&batch(), early.clone(), "a batch goes on before its children have ended");
    assert_reported(&batch(), early, "a child of a batch is lost");
    let removed = Defect::of_facts(|history| {
        never_ends(history, "b1-/0");
        let last = history.iter_mut().rev().find(|entry| is_of(entry, "b1-/0"));
        last.unwrap().fact = Fact::TakenAway { why: "planted" };
    });
    assert!(!findings(&batch(), removed).contains(&"a child of a batch is lost"));
    let never = Defect::of_facts(|history| never_runs(history, "b1-"));
    assert_reported(&batch(), never, "a batch never goes on");
}

#[test]
fn result_that_a_continuation_misses_is_reported() {
    let note = Note::Undone { id: "b1-".to_owned(), missing: 1 };
    assert_reported(&batch(), Defect::of_notes([note]), "a continuation misses results");
}

#[test]
fn unique_work_that_is_sent_twice_is_reported() {
    let sent = |id: &str, began, at| Note::Unique {
        key: "report".to_owned(),
        began,
        at,
        window: 60_000,
        id: id.to_owned(),
        is_sent: true,
    };
    let defect = Defect::of_notes([sent("u1.", 0, 0), sent("u2.", usize::MAX, 1_000)]);
    assert_reported(&one(Script::default()), defect, "unique work was sent twice in its window");
}

#[test]
fn unique_work_that_joins_a_job_that_is_gone_is_reported() {
    let unique = |began, at, is_sent| {
        let (key, id) = ("report".to_owned(), "u1.".to_owned());
        Note::Unique { key, began, at, window: 60_000, id, is_sent }
    };
    let cleared = Note::Cleared { began: usize::MAX };
    let kept = Note::UniqueKept { key: "report".to_owned(), began: usize::MAX };
    for (gone, what) in [
        (cleared, "unique work joins a job that was cleared"),
        (kept, "unique work joins a job that was cancelled"),
    ] {
        let notes = [unique(0, 0, true), gone, unique(usize::MAX, 1_000, false)];
        assert_reported(&one(Script::default()), Defect::of_notes(notes), what);
    }
}

#[test]
fn cancelled_job_that_runs_is_reported() {
    let defect = Defect::of_notes([Note::Cancelled { id: "j1.".to_owned() }]);
    assert_reported(&one(Script::default()), defect, "a cancelled job runs");
}

#[test]
fn job_that_begins_in_a_pause_is_reported() {
    let pause = ActionKind::PauseFor { time: Duration::from_secs(90) };
    let jobs = ["j1.", "j2."].map(|id| job(id.to_owned(), Script::default()));
    let [first, second] = jobs;
    let mut plan = plan(&[Feature::PausesWithEnd], [first, pause, second]);
    // All pauses end after the last action.
    plan.actions.push(Action { at: Duration::from_secs(80), actor: 0, what: ActionKind::Search });
    let defect = Defect::of_facts(|history| {
        let began = |entry: &&mut Entry| is_of(entry, "j2.") && matches!(entry.fact, Fact::RunBegan { .. });
        history.iter_mut().filter(began).for_each(|entry| entry.at = Duration::from_secs(60));
    });
    assert_reported(&plan, defect, "a job begins while its queue is paused");
}

#[test]
fn job_that_runs_in_spite_of_its_cancellation_is_reported() {
    let ActionKind::Send(mut spec) = job("j1.".to_owned(), Script::default()) else {
        unreachable!("it is a send");
    };
    (spec.key, spec.delay) = (Some("k0".to_owned()), Some(Duration::from_secs(60)));
    let cancel = ActionKind::CancelAll { key: "k0".to_owned() };
    let defect = Defect::of_facts(|history| {
        for entry in history.iter_mut().filter(|entry| is_of(entry, "j1.")) {
            if let Fact::Received { inserted, delivery, .. } = entry.fact {
                entry.fact = Fact::RunBegan { run: 1, inserted, delivery, attempt: 1, max_attempts: 3 };
            }
        }
    });
    let plan = plan(&[Feature::CancelPlans, Feature::Delayed], [ActionKind::Send(spec), cancel]);
    assert_reported(&plan, defect, "a job runs in spite of its cancellation");
}

#[test]
fn others_that_follow_a_dead_canary_are_reported() {
    let rejected = |id: &str| job(id.to_owned(), Script { reject: true, ..Script::default() });
    let plan = plan(&[Feature::Canaries], [rejected("j1."), rejected("j2."), ActionKind::RedriveAfterCanary]);
    let jobs = ["j1.", "j2."].map(str::to_owned).to_vec();
    let defect = Defect::of_notes([Note::AfterCanary { began: 0, canary: 1, jobs }]);
    assert_reported(&plan, defect, "others follow a canary that has died");
}

#[test]
fn checkpoints_and_results_that_change_are_reported() {
    let id = || "j1.".to_owned();
    let defects = [
        (
            [Note::Fence { id: id(), fence: 7 }, Note::Fence { id: id(), fence: 7 }],
            "a later run has no larger fence",
        ),
        (
            [Note::Fence { id: id(), fence: 7 }, Note::Fence { id: id(), fence: 5 }],
            "a later run has no larger fence",
        ),
        ([Note::Saved { id: id(), value: 2 }, Note::Resumed { id: id(), value: 1 }], "a checkpoint is lost"),
        ([Note::Step { id: id(), value: 1 }, Note::Step { id: id(), value: 2 }], "a step ran twice"),
        (
            [Note::Once { id: id(), value: 1 }, Note::Once { id: id(), value: 2 }],
            "an effect that happens once returned two results",
        ),
    ];
    for (notes, what) in defects {
        // A fault in a put of another job explains none of these.
        let facts = |history: &mut [Entry]| {
            let starts = history.iter_mut().find(|entry| matches!(entry.fact, Fact::Noted(_)));
            let (operation, subject) = (Operation::Put, "work".to_owned());
            starts.unwrap().fact = Fact::Fault { operation, subject, fault: Fault::HangAfter };
        };
        let defect = Defect { facts, ..Defect::of_notes(notes) };
        assert_reported(&one(Script::default()), defect, what);
    }
}

/// A run that began before the run that saved may resume from an earlier checkpoint. A run that began after
/// it may not.
#[test]
fn checkpoint_that_a_later_run_does_not_find_is_reported() {
    let saves = Script { checkpoints: 2, ..Script::default() };
    // The run of the second job has number 1.
    let plan = plan(&[], [job("j0.".to_owned(), Script::default()), job("j1.".to_owned(), saves)]);
    let resumed = Note::Resumed { id: "j1.".to_owned(), value: 0 };
    let with = |facts| findings(&plan, Defect { facts, ..Defect::of_notes([resumed.clone()]) });
    let earlier =
        with(|history| begin_a_run(history, 0, |entry| matches!(entry.fact, Fact::SendBegan { .. })));
    assert!(!earlier.contains(&"a checkpoint is lost"), "{earlier:?}");
    let later = with(|history| begin_a_run(history, 2, |entry| matches!(entry.fact, Fact::Deleted { .. })));
    assert!(later.contains(&"a checkpoint is lost"), "{later:?}");
}

/// Replaces an entry by the start of a run of `j1.` in the process of the planted notes.
fn begin_a_run(history: &mut [Entry], run: u64, is_place: fn(&Entry) -> bool) {
    let place = history.iter_mut().find(|entry| is_of(entry, "j1.") && is_place(entry)).unwrap();
    let inserted = std::time::SystemTime::UNIX_EPOCH;
    place.node = "planted".into();
    place.fact = Fact::RunBegan { run, inserted, delivery: 1, attempt: 1, max_attempts: 3 };
}

#[test]
fn attempts_of_another_type_are_reported() {
    let defect = Defect::of_facts(|history| {
        for entry in history.iter_mut().filter(|entry| is_of(entry, "b1-")) {
            if let Fact::RunBegan { max_attempts, .. } = &mut entry.fact {
                *max_attempts = 3;
            }
        }
    });
    assert_reported(&batch(), defect, "a job has the attempts of another type");
}

#[test]
fn effect_that_happens_twice_is_reported() {
    let again = Note::OnceHappens { id: "j1.".to_owned() };
    let once = Script { once: true, ..Script::default() };
    assert_reported(&one(once), Defect::of_notes([again]), "an effect that happens once happened twice");
}

#[test]
fn journal_that_tells_too_much_or_too_little_is_reported() {
    let plan = plan(&[Feature::Journal], [job("j1.".to_owned(), Script::default())]);
    let invented = Defect::of_facts(|history| never_ends(history, "j1."));
    assert_reported(&plan, invented, "the journal tells an end that never was");
    let forgotten = Defect::of_facts(|history| {
        let is_end = |entry: &&Entry| matches!(entry.fact, Fact::Settled { .. });
        let end = history.iter().find(is_end).map(|entry| entry.fact.clone());
        let place = history.iter_mut().find(|entry| matches!(entry.fact, Fact::RunEnded { .. }));
        if let (Some(place), Some(end)) = (place, end) {
            place.fact = end;
        }
    });
    assert_reported(&plan, forgotten, "an end is missing in the journal");
}

#[test]
fn lost_payload_of_a_dead_letter_is_reported() {
    let ActionKind::Send(mut spec) = job("j1.".to_owned(), Script { reject: true, ..Script::default() })
    else {
        unreachable!("it is a send");
    };
    spec.bytes = 70_000;
    let plan = plan(&[Feature::Blobs, Feature::Reject], [ActionKind::Send(spec)]);
    let diary = Diary::new(&plan, false);
    let world = run::world(&Backend::AzureLike, &plan, &diary).judge(|world| async move {
        let sound = blobs::dead_letters(&world).await.1;
        assert!(sound.is_empty(), "without the defect: {sound:?}");
        let (store, payloads) =
            (world.accounts()[0].blobs(), ContainerName::new("jobqueue-payloads").unwrap());
        for (name, _) in store.list_blobs(&payloads, "", None).await.unwrap().blobs {
            let blob = BlobName::new(payloads.clone(), name).unwrap();
            store.delete_blob(&blob, None).await.unwrap();
        }
        blobs::dead_letters(&world).await.1
    });
    let reported: Vec<_> =
        world.run_with(plan.noise, &[]).findings.into_iter().map(|found| found.what).collect();
    assert_eq!(reported, ["the payload of a dead letter is missing"]);
}
