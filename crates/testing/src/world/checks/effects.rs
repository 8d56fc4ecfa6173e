//! Judges that an effect is repeated only when its handler runs again for a cause.

use std::collections::BTreeMap;

use super::doubled::has_cause;
use super::evidence::{Job, JobRun};
use super::{Evidence, Finding};
use crate::world::ledger::{Entry, Fact};

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for job in evidence.jobs() {
        let mut effects: BTreeMap<&str, Vec<(&Entry, JobRun<'_>)>> = BTreeMap::new();
        for entry in &job.entries {
            if let Fact::Effect { name, inserted, delivery, .. } = &entry.fact
                && let Some(run) = job.run_of(entry, *inserted, *delivery)
            {
                effects.entry(name).or_default().push((entry, run));
            }
        }
        for (name, effects) in effects {
            found.extend(effects.windows(2).find_map(|pair| repeated(&job, name, pair)));
        }
    }
    found
}

fn repeated(job: &Job<'_>, name: &str, pair: &[(&Entry, JobRun<'_>)]) -> Option<Finding> {
    let [(first, earlier), (second, later)] = pair else { return None };
    let what = if earlier.number == later.number {
        "an effect happened twice in one run"
    } else if (earlier.is_done() || !earlier.has_ended(later.began.number)) && !has_cause(job, earlier, later)
    {
        "an effect happened twice without a cause"
    } else {
        return None;
    };
    Some(job.finding(
        what,
        format!(
            "`{name}` at {:?} in run {} and at {:?} in run {}",
            first.at, earlier.number, second.at, later.number
        ),
    ))
}
