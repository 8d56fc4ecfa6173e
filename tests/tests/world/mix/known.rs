//! Defects that are known, with worlds that show them. A finding of such a defect fails no world until the defect is mended. Then
//! the world that shows it here fails: remove its entry.

use std::time::Duration;

use jobqueue::testing::world::Finding;

use super::backend::Backend;
use super::batches::child;
use super::features::Feature;
use super::plan::{Action, Plan, What};
use super::run;
use super::spec::{Fan, Script, Spec};

/// A child that has started a batch of its own and fails afterwards ends with that batch: it is never dead-lettered, and its failure is lost.
const FAILS_BESIDE_ITS_BATCH: &str = "a job that was never done is settled as a duplicate";

/// Returns whether a finding is of a known defect.
pub(super) fn is_known(plan: &Plan, found: &Finding) -> bool {
    match found.what {
        FAILS_BESIDE_ITS_BATCH => starts_a_batch(plan, &found.subject),
        _ => false,
    }
}

fn starts_a_batch(plan: &Plan, job: &str) -> bool {
    let fails_beside = |script: &Script| script.fan.is_some() && script.fan_in_step && script.fail > 0;
    let fans = plan.fans();
    let mut parts = fans.iter().flat_map(|fan| {
        let children = fan.children.iter().enumerate();
        let join = (fan.id.clone(), &fan.join);
        children.map(|(index, script)| (child(fan, index), script)).chain([join])
    });
    parts.any(|(id, script)| id == job && fails_beside(script))
}

pub(super) fn job(id: String, script: Script) -> What {
    let (key, delay, ttl) = (None, None, None);
    let (in_order, resend) = (false, false);
    What::Send(Spec { id, script, bytes: 10, header: 0, key, in_order, delay, ttl, resend })
}

pub(super) fn fan(id: &str, part: Script) -> Fan {
    Fan {
        id: id.to_owned(),
        children: vec![part],
        options: Vec::new(),
        interrupted: false,
        goes_on: false,
        join: Script::default(),
    }
}

#[test]
fn failure_of_a_child_beside_its_batch_is_lost() {
    let inner = Some(Box::new(fan("b2-", Script::default())));
    let part = Script { millis: 1_000, fail: 4, fan: inner, fan_in_step: true, ..Script::default() };
    let outer = What::Batch(fan("b1-", part));
    let plan = |noise| Plan {
        seed: noise,
        noise,
        features: vec![Feature::Batches, Feature::Nested, Feature::Fail],
        workers: 1,
        faults: 0.0,
        spread: (1, 1),
        actions: vec![Action { at: Duration::ZERO, actor: 0, what: outer.clone() }],
    };
    let is_shown = |noise| {
        let found = run::findings(&Backend::AzureLike, &plan(noise));
        found.iter().any(|found| found.what == FAILS_BESIDE_ITS_BATCH)
    };
    assert!((0..20).any(is_shown), "this defect seems to be mended: remove it from the known ones");
}
