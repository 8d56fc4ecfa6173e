//! Judges that a job has the attempts of its own type, whatever other types are in its queue and whatever
//! other releases read it.

use std::collections::BTreeMap;

use jobqueue::QueueMessage;
use jobqueue_testing::world::{Fact, Finding};

use super::{Evidence, finding};
use crate::mix::action::ActionKind;
use crate::mix::messages::{Former, Join, Newer, Part, Work};

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let attempts = attempts(evidence);
    let runs = evidence.history.iter().filter_map(|entry| match (&entry.job, &entry.fact) {
        (Some(job), Fact::RunBegan { max_attempts, .. }) => Some((job, *max_attempts)),
        _ => None,
    });
    let others = runs.filter_map(|(job, max_attempts)| {
        let own = attempts.get(&**job)?;
        (!own.contains(&max_attempts)).then(|| {
            finding("a job has the attempts of another type", job, format!("{max_attempts}, not {own:?}"))
        })
    });
    others.collect()
}

/// Returns the maximum numbers of attempts that each job may have.
fn attempts(evidence: &Evidence) -> BTreeMap<String, Vec<u32>> {
    let plan = &evidence.diary.plan;
    let set = evidence.history.iter().filter_map(|entry| match &entry.fact {
        Fact::Threshold { queue, attempts } if **queue == *Work::QUEUE => Some(*attempts),
        _ => None,
    });
    let of_work: Vec<u32> = set.chain([of::<Work>()]).collect();
    let mut jobs: BTreeMap<String, Vec<u32>> =
        plan.specs().map(|spec| (spec.id.clone(), of_work.clone())).collect();
    for fan in plan.fans() {
        let children = (0..fan.children.len()).map(|index| crate::mix::batches::child(fan, index));
        jobs.extend(children.map(|child| (child, vec![of::<Part>()])));
        jobs.insert(fan.id.clone(), vec![of::<Join>()]);
    }
    for action in &plan.actions {
        if let ActionKind::Release { ids, newer } = &action.what {
            // The newer release reads messages of the former one as its own.
            let own = if *newer { vec![of::<Newer>()] } else { vec![of::<Former>(), of::<Newer>()] };
            jobs.extend(ids.iter().map(|id| (id.clone(), own.clone())));
        }
    }
    jobs
}

/// Returns the attempts that a type declares.
fn of<M: QueueMessage>() -> u32 {
    M::DEFAULTS.poison_threshold.expect("each type of a world declares it")
}
