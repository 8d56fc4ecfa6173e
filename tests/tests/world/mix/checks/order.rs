//! A job in order begins after the end of the jobs of its key whose send had returned when its own send began.
//! Within a list, it begins after the end of those that stand before it.

use jobqueue::testing::world::{Fact, Finding, Verdict};

use super::progress::is_single;
use super::{Evidence, finding};
use crate::mix::plan::What;
use crate::mix::spec::Spec;

struct Sent<'a> {
    spec: &'a Spec,
    began: usize,
    acknowledged: Option<usize>,
    /// The list that it was sent in, by the number of its action, and its place there.
    place: Option<(usize, usize)>,
}

impl Sent<'_> {
    fn is_before(&self, later: &Self) -> bool {
        let returned = self.acknowledged.is_some_and(|acknowledged| acknowledged < later.began);
        let listed =
            self.place.zip(later.place).is_some_and(|((list, one), (other, two))| list == other && one < two);
        self.spec.key == later.spec.key && self.acknowledged.is_some() && (returned || listed)
    }
}

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let plan = evidence.diary.plan.clone();
    let in_order = plan.specs().filter(|spec| spec.in_order && !is_taken_over(evidence, &spec.id));
    let sent: Vec<Sent<'_>> = in_order
        .filter_map(|spec| {
            let began = evidence.first(&spec.id, |fact| matches!(fact, Fact::SendBegan { .. }))?;
            let is_ack = |fact: &Fact| matches!(fact, Fact::Sent { verdict: Verdict::Acknowledged, .. });
            let place = plan.place_in_list(&spec.id);
            Some(Sent { spec, began, acknowledged: evidence.first(&spec.id, is_ack), place })
        })
        .collect();
    let mut found = Vec::new();
    for later in &sent {
        let Some(run) = evidence.began(&later.spec.id) else { continue };
        for earlier in &sent {
            if !earlier.is_before(later) || evidence.is_accounted(&earlier.spec.id) {
                continue;
            }
            // The next may begin between the copy to the dead letters and what the worker tells of it.
            let died = evidence.died(&earlier.spec.id);
            let died = died.and_then(|died| evidence.last_run_ended(&earlier.spec.id, died).or(Some(died)));
            let ends = [evidence.done(&earlier.spec.id), died];
            // A job that has died and is redriven, or has a second message, runs behind the others. The worker that
            // dead-lettered it may not have told, or was told later: the letter could not be stored at once.
            let comes_again =
                evidence.is_redriven(&earlier.spec.id) || !is_single(evidence, &earlier.spec.id);
            let may_die = earlier.spec.script.reject || earlier.spec.script.fail > 0 || died.is_some();
            let copy_came_later =
                (comes_again && may_die).then(|| evidence.ended_before(&earlier.spec.id, run)).flatten();
            let over = ends.into_iter().chain([copy_came_later]).flatten().min();
            // Its worker may have died before it could tell that the job is dead.
            let died_untold = over.is_none() && evidence.dead.contains(&earlier.spec.id);
            if !died_untold && over.is_none_or(|over| over > run) {
                found.push(finding(
                    "a job overtakes another of its key",
                    &format!("{} {}", earlier.spec.id, later.spec.id),
                    format!(
                        "{} began (entry {run}) before {} was over (entry {over:?}), key {:?}",
                        later.spec.id, earlier.spec.id, earlier.spec.key
                    ),
                ));
            }
        }
    }
    found
}

/// Returns whether another sender may have sent its own message under the id of this unique job, because the first one
/// died or was not told. Nothing in the plan says whether that message is in order.
fn is_taken_over(evidence: &Evidence, id: &str) -> bool {
    let is_unique = |what: &What| matches!(what, What::Unique { spec, .. } if spec.id == id);
    if !evidence.diary.plan.actions.iter().any(|action| is_unique(&action.what)) {
        return false;
    }
    let entry = |number: Option<usize>| number.and_then(|number| evidence.history.get(number));
    let began = entry(evidence.first(id, |fact| matches!(fact, Fact::SendBegan { .. })));
    let told = entry(evidence.first(id, |fact| matches!(fact, Fact::Sent { .. })));
    let (Some(began), Some(told)) = (began, told) else { return true };
    let is_acknowledged = matches!(&told.fact, Fact::Sent { verdict: Verdict::Acknowledged, .. });
    let died = evidence.history[began.number..told.number]
        .iter()
        .any(|entry| entry.node == began.node && matches!(entry.fact, Fact::Incident(_)));
    !is_acknowledged || told.node != began.node || died
}
