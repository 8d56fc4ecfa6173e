//! All features together, at random: a world performs a plan that is drawn from its seed and can be
//! shortened.
//!
//! To add a feature, add its name in `features`, its actions in `plan` and `actors`, and its promise in
//! `checks`.

mod action;
mod actors;
mod backend;
mod batches;
mod bus;
mod checks;
mod diary;
mod features;
mod handlers;
mod messages;
mod operator;
mod plan;
mod run;
mod scenes;
mod spec;
mod upkeep;

use backend::Backend;
use features::Feature;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Returns the features that `JOBQUEUE_FEATURES` names, or all that are not left out.
fn mix() -> Vec<Feature> {
    match std::env::var("JOBQUEUE_FEATURES") {
        Ok(names) => names.split(',').map(|name| Feature::named(name).expect(name)).collect(),
        Err(_) => Feature::in_the_mix(),
    }
}

#[test]
fn worlds_of_all_features_keep_every_promise() {
    let worlds = number("JOBQUEUE_WORLDS").unwrap_or(2_000);
    run::check(&Backend::AzureLike, &mix(), number("JOBQUEUE_SEED"), worlds);
}

#[test]
fn worlds_on_sqlite_keep_every_promise() {
    let worlds = number("JOBQUEUE_SQLITE_WORLDS").unwrap_or(100);
    run::check(&Backend::sqlite(), &mix(), number("JOBQUEUE_SEED"), worlds);
}

#[test]
fn worlds_on_service_bus_keep_every_promise() {
    let worlds = number("JOBQUEUE_SERVICEBUS_WORLDS").unwrap_or(6);
    run::check(&Backend::ServiceBus { sessions: false }, &mix(), number("JOBQUEUE_SEED"), worlds);
}

#[test]
fn worlds_on_service_bus_with_sessions_keep_every_promise() {
    let worlds = number("JOBQUEUE_SERVICEBUS_WORLDS").unwrap_or(6);
    run::check(&Backend::ServiceBus { sessions: true }, &mix(), number("JOBQUEUE_SEED"), worlds);
}

fn repeats(backend: &Backend, seed: u64) {
    let plan = plan::Plan::draw(seed, &Feature::in_the_mix());
    let (one, again) = (run::logged(backend, &plan), run::logged(backend, &plan));
    assert!(one.lines().count() > 50, "{one}");
    for (number, (one, again)) in one.lines().zip(again.lines()).enumerate() {
        assert_eq!(one, again, "seed {seed}, line {number}");
    }
    assert_eq!(one.len(), again.len());
    let other = plan::Plan { noise: plan.noise + 1, ..plan };
    assert_ne!(one, run::logged(backend, &other), "seed {seed} with other noise");
}

#[test]
fn same_seed_gives_the_same_world() {
    (0..6).for_each(|seed| repeats(&Backend::AzureLike, seed));
    repeats(&Backend::sqlite(), 1);
}
