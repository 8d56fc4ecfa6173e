//! Judges that a sealed batch continues exactly when all its children have ended, and that every child runs.

use jobqueue_testing::world::Finding;

use super::{Evidence, finding};
use crate::mix::batches::child;
use crate::mix::diary::Note;
use crate::mix::spec::Fan;

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let notes = evidence.diary.notes();
    let plan = evidence.diary.plan.clone();
    let mut found = Vec::new();
    for fan in plan.fans() {
        let sealed = notes.iter().any(|(_, note)| matches!(note, Note::Sealed { id } if *id == fan.id));
        found.extend(premature(evidence, fan));
        let undone = notes.iter().find_map(|(_, note)| match note {
            Note::Undone { id, missing } if *id == fan.id && *missing > 0 && !fan.goes_on => Some(missing),
            _ => None,
        });
        found.extend(undone.map(|missing| {
            finding("a continuation misses results", &fan.id, format!("of {missing} children"))
        }));
        if sealed {
            found.extend(incomplete(evidence, fan));
        }
    }
    found
}

/// Returns the children of a batch: index, id, and the batch that the child sends, if any. Such a child ends
/// with its batch.
fn children(fan: &Fan) -> impl Iterator<Item = (usize, String, Option<&Fan>)> {
    let children = fan.children.iter().enumerate();
    children.map(|(index, script)| (index, child(fan, index), script.fan.as_deref()))
}

/// Returns whether a job is done before an entry. A job that has sent a batch is done only if the batch is
/// done as well.
fn is_done(evidence: &Evidence, id: &str, ends_in: Option<&Fan>, before: usize) -> bool {
    let inner = ends_in.is_none_or(|inner| is_done(evidence, &inner.id, inner.join.fan.as_deref(), before));
    inner && evidence.done(id).is_some_and(|done| done < before)
}

fn may_expire(fan: &Fan, index: usize) -> bool {
    fan.options_of(index).ttl.is_some()
}

/// Finds a continuation that began before all children had ended.
fn premature(evidence: &Evidence, fan: &Fan) -> Option<Finding> {
    let began = evidence.began(&fan.id)?;
    let is_over = |(index, id, ends_in): &(usize, String, Option<&Fan>)| {
        let died = |id: &str| {
            let reported = evidence.died(id).is_some_and(|died| died < began);
            reported || evidence.dead.contains(id) || evidence.is_redriven(id) || evidence.is_accounted(id)
        };
        // A child whose run had ended may expire before its letter could be stored.
        let expired = may_expire(fan, *index) && evidence.ended_before(id, began).is_some();
        let dead = expired || died(id) || ends_in.is_some_and(|inner| died(&inner.id));
        is_done(evidence, id, *ends_in, began) || (fan.goes_on && dead)
    };
    let (_, early, _) = children(fan).find(|child| !is_over(child))?;
    let detail = format!("the continuation of {} began at entry {began}, and {early} had not ended", fan.id);
    Some(finding("a batch goes on before its children have ended", &format!("{} {early}", fan.id), detail))
}

/// Finds a child or a continuation that never ran.
fn incomplete(evidence: &Evidence, fan: &Fan) -> Option<Finding> {
    let is_over = |id: &str| evidence.done(id).is_some() || evidence.dead.contains(id);
    let accounted =
        children(fan).any(|(_, id, _)| evidence.is_accounted(&id)) || evidence.is_accounted(&fan.id);
    if accounted {
        return None;
    }
    let is_lost = |(index, id, ends_in): &(usize, String, Option<&Fan>)| {
        !is_over(id) && !is_done(evidence, id, *ends_in, usize::MAX) && !may_expire(fan, *index)
    };
    if let Some((_, lost, _)) = children(fan).find(is_lost) {
        let detail = format!("it is a child of the sealed batch {}, and neither done nor dead", fan.id);
        return Some(finding("a child of a batch is lost", &lost, detail));
    }
    // A batch that a child starts may itself wait for a dead letter. An expired child never ends, even if its
    // handler had returned, if no process could record that.
    let waits = children(fan).any(|(index, id, ends_in)| {
        let done = is_done(evidence, &id, ends_in, usize::MAX);
        let expired = may_expire(fan, index) && !evidence.is_settled(&id) && !evidence.dead.contains(&id);
        // A batch learns of the failure of a child, and of the continuation in which the child ends.
        let has_died = [Some(&id), ends_in.map(|inner| &inner.id)]
            .into_iter()
            .flatten()
            .any(|id| evidence.dead.contains(id));
        expired || !(done || fan.goes_on && has_died)
    });
    if !waits && !is_over(&fan.id) {
        let detail = "all its children have ended, and it neither ran nor is dead".to_owned();
        return Some(finding("a batch never goes on", &fan.id, detail));
    }
    None
}
