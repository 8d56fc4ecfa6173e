//! Judges that checkpoints and fences grow, and that a step or an effect returns the same result again.

use std::collections::BTreeMap;

use jobqueue_testing::world::{Disturbance, Entry, Fact, Finding, RunEnd, Verdict};

use super::{Evidence, finding, is_of};
use crate::mix::diary::Note;

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut saved: BTreeMap<String, Vec<(Option<u64>, u32)>> = BTreeMap::new();
    let mut steps: BTreeMap<String, u64> = BTreeMap::new();
    let mut once: BTreeMap<String, u64> = BTreeMap::new();
    for (number, note) in evidence.diary.notes() {
        match note {
            Note::Saved { id, value } if is_single(evidence, &id) => {
                let run = evidence.run_at(&id, number);
                saved.entry(id).or_default().push((run, value));
            }
            Note::Resumed { id, value } if is_single(evidence, &id) => {
                // A process that was frozen goes on with the checkpoint that it received, although a later
                // run may have saved more since.
                let run = evidence.run_at(&id, number);
                let is_later = |saver: &Option<u64>| run.is_some() && *saver > run;
                let of_id = saved.get(&id).into_iter().flatten();
                let newest = of_id.filter(|(saver, _)| !is_later(saver)).map(|(_, value)| *value).max();
                let newest = newest.unwrap_or_default();
                if value < newest {
                    let detail =
                        format!("checkpoint {newest} was acknowledged, and {value} found (entry {number})");
                    found.push(finding("a checkpoint is lost", &id, detail));
                }
            }
            Note::Step { id, value } if is_single(evidence, &id) && evidence.diary.plan.is_quiet() => {
                let first = *steps.entry(id.clone()).or_insert(value);
                if first != value {
                    let detail = format!("it returned {first}, and later {value} (entry {number})");
                    found.push(finding("a step ran twice", &id, detail));
                }
            }
            Note::Once { id, value } => {
                let first = *once.entry(id.clone()).or_insert(value);
                if first != value {
                    let detail = format!("it returned {first}, and later {value} (entry {number})");
                    found.push(finding("an effect that happens once returned two results", &id, detail));
                }
            }
            _ => {}
        }
    }
    found.extend(fences(evidence));
    found.extend(repeated_effects(evidence));
    found
}

/// Finds a later run of a job whose fence is not larger. Notes are sorted by run, because a process that was
/// stopped may note its fence after a later run.
fn fences(evidence: &Evidence) -> Vec<Finding> {
    let mut of_runs: BTreeMap<String, Vec<(Option<u64>, u64)>> = BTreeMap::new();
    for (number, note) in evidence.diary.notes() {
        if let Note::Fence { id, fence } = note {
            let run = evidence.run_at(&id, number);
            of_runs.entry(id).or_default().push((run, fence));
        }
    }
    let mut found = Vec::new();
    for (id, mut fences) in of_runs.into_iter().filter(|(id, _)| is_single(evidence, id)) {
        fences.sort_by_key(|(run, _)| *run);
        let pair = fences.windows(2).find(|pair| pair[0].1 >= pair[1].1);
        found.extend(pair.map(|pair| finding("a later run has no larger fence", &id, format!("{pair:?}"))));
    }
    found
}

/// Finds an effect for `once` that happens in a second run, although the process of the first run could have
/// recorded it: it was not stopped, and had its lease.
fn repeated_effects(evidence: &Evidence) -> Vec<Finding> {
    let mut last: BTreeMap<String, usize> = BTreeMap::new();
    let mut found = Vec::new();
    for (number, note) in evidence.diary.notes() {
        let Note::OnceHappens { id } = note else { continue };
        let Some(first) = last.insert(id.clone(), number).filter(|_| is_single(evidence, &id)) else {
            continue;
        };
        let run = evidence.run_at(&id, first);
        let was_stopped = run.is_some_and(|run| is_asked_to_stop_in(evidence, run, first));
        if !was_stopped && run.is_some_and(|run| !evidence.world.may_lose_lease(run, number)) {
            let detail = format!("at entry {first}, in run {run:?}, and again at entry {number}");
            found.push(finding("an effect that happens once happened twice", &id, detail));
        }
    }
    found
}

/// Returns whether the worker of a run was asked to stop between an entry and the end of the run. Then its
/// handler may have been stopped before it could record an effect.
fn is_asked_to_stop_in(evidence: &Evidence, run: u64, since: usize) -> bool {
    let node = &evidence.history[since].node;
    let ends = |fact: &Fact| matches!(fact, Fact::RunEnded { run: ended, end } if *ended == run && *end != RunEnd::Done);
    let is_asked_to_stop = |entry: &Entry| {
        entry.node == *node && matches!(entry.fact, Fact::Incident(Disturbance::StopRequested))
    };
    let run_end = evidence.history[since..].iter().position(|entry| ends(&entry.fact));
    run_end.is_some_and(|end| evidence.history[since..since + end].iter().any(is_asked_to_stop))
}

/// Returns whether the job has exactly one message, because copies have separate checkpoints. The library
/// itself sends some jobs and puts some again. A put without a known answer may have stored a message.
pub(super) fn is_single(evidence: &Evidence, id: &str) -> bool {
    let (mut sends, mut stored, mut unanswered) = (0, 0, 0);
    let mut certain = true;
    let mut sending = None;
    for entry in &evidence.history {
        match &entry.fact {
            Fact::SendBegan { .. } if is_of(entry, id) => {
                sends += 1;
                sending = Some(&entry.node);
            }
            Fact::Sent { verdict, .. } if is_of(entry, id) => {
                certain &= *verdict == Verdict::Acknowledged;
                sending = None;
            }
            // The connection ended during the send, so the answer may be lost and the send repeated.
            Fact::Incident(_) if sending == Some(&entry.node) => certain = false,
            // A dead letter that is stored twice is a second message only if it is redriven.
            Fact::PutBegan { queue } if is_of(entry, id) && may_run(evidence, id, queue) => unanswered += 1,
            Fact::Put { queue, verdict, .. } if is_of(entry, id) && may_run(evidence, id, queue) => {
                unanswered -= 1;
                certain &= *verdict != Verdict::Unknown;
                stored += u32::from(*verdict == Verdict::Acknowledged);
            }
            _ => {}
        }
    }
    let is_sent_once = if sends == 0 { stored == 1 } else { sends == 1 };
    is_sent_once && certain && unanswered == 0
}

fn may_run(evidence: &Evidence, id: &str, queue: &str) -> bool {
    !queue.contains("-poison") || evidence.is_redriven(id)
}
