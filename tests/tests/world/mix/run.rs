//! Runs plans, and shortens the plans that fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use jobqueue_testing::world::{Builder, Finding, Profile, Run, World, shrink};

use super::action::{Action, ActionKind};
use super::backend::Backend;
use super::features::Feature;
use super::plan::Plan;
use super::{actors, checks, handlers};
use crate::mix::diary::Diary;

/// Returns a world that performs a plan, without judges.
pub(super) fn world(backend: &Backend, plan: &Plan, diary: &Diary) -> Builder {
    let (played, diary) = (diary.clone(), diary.clone());
    let profile = Profile { faults: plan.faults, ..Profile::quiet() };
    backend
        .of(World::builder(), plan)
        .profile(profile)
        .sharded(plan.spread.0, plan.spread.1)
        // A job in order whose message vanished holds up its key for some eight minutes, and such jobs add
        // up.
        .patience(Duration::from_secs(3 * 3600))
        .workers_with(plan.workers, move |worker, node| {
            handlers::configure_worker(worker, node, &node.world(), &diary)
        })
        .scenario(move |world| actors::play(world, played.clone()))
}

fn run(backend: &Backend, plan: &Plan, logs: bool) -> Run {
    let incidents = plan.actions.iter().filter_map(|action| match action.what {
        ActionKind::Incident(incident) => Some((action.at, incident)),
        _ => None,
    });
    let incidents: Vec<_> = incidents.collect();
    let diary = Diary::new(plan, backend.orders_by_sessions(plan));
    let world = world(backend, plan, &diary).judge(move |world| checks::all(world, diary.clone()));
    let world = if logs { world.keep_calls() } else { world };
    world.run_with(plan.noise, &incidents)
}

/// Returns every storage call of a world.
pub(super) fn logged(backend: &Backend, plan: &Plan) -> String {
    run(backend, plan, true).calls
}

/// Aborts the program with a message if the returned sender is not dropped within ten minutes. A world takes
/// seconds.
fn watch(noise: u64) -> Sender<()> {
    let (watched, ended) = channel();
    std::thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(600)) == Err(RecvTimeoutError::Timeout) {
            eprintln!(
                "a world of seed {noise} has not ended after ten minutes: does a thread wait for ever?"
            );
            std::process::abort();
        }
    });
    watched
}

/// Runs worlds on all cores until one fails.
pub(super) fn check(backend: &Backend, features: &[Feature], only: Option<u64>, worlds: u64) {
    let (first, count) =
        only.map_or((super::number("JOBQUEUE_FIRST").unwrap_or(0), worlds), |seed| (seed, 1));
    let next = AtomicU64::new(first);
    let threads = super::number("JOBQUEUE_THREADS").unwrap_or(2).min(count);
    let failures = Mutex::new(Vec::new());
    let max_failures = super::number("JOBQUEUE_FAILURES").unwrap_or(1) as usize;
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count || failures.lock().unwrap().len() >= max_failures {
                        return;
                    }
                    let begun = std::time::Instant::now();
                    let failure = failure(backend, seed, features);
                    if begun.elapsed() > Duration::from_secs(2) || super::number("JOBQUEUE_VERBOSE").is_some()
                    {
                        eprintln!("seed {seed} took {:?}", begun.elapsed());
                    }
                    if let Some(report) = failure {
                        eprintln!("{report}");
                        failures.lock().unwrap().push(report);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {count} worlds failed", failures.len());
}

pub(super) fn findings(backend: &Backend, plan: &Plan) -> Vec<Finding> {
    let watched = watch(plan.noise);
    let ran = catch_unwind(AssertUnwindSafe(|| run(backend, plan, false).findings));
    drop(watched);
    ran.unwrap_or_else(|_| {
        let detail = "see above".to_owned();
        vec![Finding { what: "the world panicked", subject: String::new(), detail }]
    })
}

/// Returns a report about the world of a seed, with the shortest plan that has the same finding, or `None` if
/// it has no findings.
fn failure(backend: &Backend, seed: u64, features: &[Feature]) -> Option<String> {
    let plan = Plan::draw(seed, features);
    let found = findings(backend, &plan);
    let what = found.first()?.what;
    let keep_calls = |plan: &Plan| {
        if let Ok(file) = std::env::var("JOBQUEUE_CALLS") {
            std::fs::write(&file, logged(backend, plan)).unwrap();
        }
    };
    if super::number("JOBQUEUE_SHRINK") == Some(0) {
        keep_calls(&plan);
        return Some(format!("seed {seed}: {} (features {:?})", found[0], plan.features));
    }
    let fails = |plan: &Plan| findings(backend, plan).iter().any(|found| found.what == what);
    let short = simplify(shorten(plan.clone(), fails), fails);
    let short = shorten(short, fails);
    keep_calls(&short);
    let run = run(backend, &short, false);
    let mut text = format!(
        "seed {seed}: {what}\nfeatures {:?}, {} workers, faults {}\n{} of {} actions:\n",
        short.features,
        short.workers,
        short.faults,
        short.actions.len(),
        plan.actions.len()
    );
    for Action { at, actor, what } in &short.actions {
        text.push_str(&format!("  {at:?} sender{actor}: {what:?}\n"));
    }
    Some(text + &run.report())
}

/// Features that are not actions and can be removed as a whole.
const REMOVABLE_FEATURES: [Feature; 7] = [
    Feature::Journal,
    Feature::Leader,
    Feature::Schedule,
    Feature::Sharding,
    Feature::Versions,
    Feature::Durable,
    Feature::Faults,
];

/// Removes features and workers as long as the plan still fails under the noise of some seed.
fn simplify(mut plan: Plan, fails: impl Fn(&Plan) -> bool) -> Plan {
    for feature in REMOVABLE_FEATURES {
        if !plan.has(feature) {
            continue;
        }
        let mut simpler = plan.clone();
        simpler.features.retain(|other| *other != feature);
        match feature {
            Feature::Sharding => simpler.spread = (1, 1),
            Feature::Faults => simpler.faults = 0.0,
            _ => {}
        }
        plan = under_some_noise(simpler, &fails).unwrap_or(plan);
    }
    while plan.workers > 1 {
        let simpler = Plan { workers: plan.workers - 1, ..plan.clone() };
        let Some(simpler) = under_some_noise(simpler, &fails) else { break };
        plan = simpler;
    }
    plan
}

/// Returns the plan with a noise under which it fails.
fn under_some_noise(plan: Plan, fails: impl Fn(&Plan) -> bool) -> Option<Plan> {
    let others = (0..12).map(|other| plan.seed.wrapping_mul(31).wrapping_add(other));
    let mut noises = [plan.noise].into_iter().chain(others);
    noises.find_map(|noise| Some(Plan { noise, ..plan.clone() }).filter(&fails))
}

/// Removes actions as long as the plan still fails, under its present noise or a few others.
fn shorten(plan: Plan, fails: impl Fn(&Plan) -> bool) -> Plan {
    let noise = Mutex::new(plan.noise);
    let with = |actions: &[Action], noise| Plan { actions: actions.to_vec(), noise, ..plan.clone() };
    let tries = super::number("JOBQUEUE_SHRINK").unwrap_or(60) as usize;
    let actions = shrink(plan.actions.clone(), tries, |fewer| {
        let present = *noise.lock().unwrap();
        let failing = under_some_noise(with(fewer, present), &fails);
        failing.is_some_and(|failing| {
            *noise.lock().unwrap() = failing.noise;
            true
        })
    });
    let noise = *noise.lock().unwrap();
    with(&actions, noise)
}
