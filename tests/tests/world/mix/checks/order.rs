//! Judges that a job in order begins only after the end of the jobs of its key whose send had returned before
//! its own send began. Within a list, it begins only after the end of the jobs before it. The children of a
//! batch are such a list.

use std::time::Duration;

use jobqueue::{Outcome, Reason};
use jobqueue_testing::world::{Fact, Finding, Verdict};

use super::progress::is_single;
use super::{Evidence, Run, finding, is_of};
use crate::mix::action::ActionKind;
use crate::mix::batches::child;
use crate::mix::diary::Note;
use crate::mix::spec::{Fan, Script, Spec};

struct Sent<'a> {
    id: String,
    key: Option<String>,
    script: &'a Script,
    /// True if the job takes its place later than it was sent.
    comes_late: bool,
    began: usize,
    acknowledged: Option<usize>,
    /// The list in which the job was sent, by the index of its action, and its place there.
    place: Option<(usize, usize)>,
}

impl Sent<'_> {
    fn is_before(&self, later: &Self) -> bool {
        let returned = self.acknowledged.is_some_and(|acknowledged| acknowledged < later.began);
        let listed =
            self.place.zip(later.place).is_some_and(|((list, one), (other, two))| list == other && one < two);
        self.key == later.key && self.acknowledged.is_some() && !self.comes_late && (returned || listed)
    }
}

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let plan = evidence.diary.plan.clone();
    let mut sent: Vec<Sent<'_>> = plan.specs().filter_map(|spec| single(evidence, spec)).collect();
    let lists = plan.actions.len();
    let batches = plan.fans().into_iter().enumerate();
    sent.extend(batches.flat_map(|(list, fan)| children(evidence, fan, lists + list)));
    let mut found = overlapping_runs(evidence, &sent);
    for later in &sent {
        let Some(run) = evidence.began(&later.id) else { continue };
        for earlier in &sent {
            if !earlier.is_before(later) || evidence.is_accounted(&earlier.id) {
                continue;
            }
            let over = end_before(evidence, earlier, run);
            // The worker may have died before it could report that the job is dead.
            let died_unreported = over.is_none() && evidence.dead.contains(&earlier.id);
            let is_over =
                over.is_some_and(|over| over < run || death_reported_late(evidence, &earlier.id, over, run));
            if !died_unreported && !is_over && !was_cancelled(evidence, &earlier.id, run) {
                found.push(finding(
                    "a job overtakes another of its key",
                    &format!("{} {}", earlier.id, later.id),
                    format!(
                        "{} began (entry {run}) before {} was over (entry {over:?}), key {:?}",
                        later.id, earlier.id, earlier.key
                    ),
                ));
            }
        }
    }
    found
}

/// Finds overlapping runs of two jobs of a key, although the process of the first one cannot have lost its
/// lease.
fn overlapping_runs(evidence: &Evidence, sent: &[Sent<'_>]) -> Vec<Finding> {
    let mut runs: Vec<(usize, Option<usize>, u64, &Sent<'_>)> = Vec::new();
    // Clearing a queue forgets the positions of its jobs.
    for job in sent.iter().filter(|job| job.acknowledged.is_some() && !evidence.is_cleared(&job.id)) {
        let own = evidence.runs(&job.id).into_iter();
        runs.extend(own.map(|Run { number, began, ended }| (began, ended, number, job)));
    }
    runs.sort_unstable_by_key(|(began, ..)| *began);
    let mut found = Vec::new();
    for (at, (began, _, _, later)) in runs.iter().enumerate() {
        let goes_on = |(_, ended, run, earlier): &&(usize, Option<usize>, u64, &Sent<'_>)| {
            earlier.key == later.key
                && earlier.id != later.id
                && ended.is_none_or(|ended| ended > *began)
                && !evidence.world.may_lose_lease(*run, *began)
        };
        found.extend(runs[..at].iter().find(goes_on).map(|(other, _, run, earlier)| {
            finding(
                "two jobs of a key run at once",
                &format!("{} {}", earlier.id, later.id),
                format!(
                    "run {run} of {} began at entry {other} and goes on when {} begins at entry {began}, key {:?}",
                    earlier.id, later.id, later.key
                ),
            )
        }));
    }
    found
}

/// Returns whether a job that a stopped worker still runs was already dead when the next job began, although
/// its death was reported a moment later. First the letter is copied, then the next job goes on, and then the
/// message is deleted.
fn death_reported_late(evidence: &Evidence, job: &str, reported: usize, next: usize) -> bool {
    let is_death = evidence.died(job) == Some(reported);
    let goes_on = evidence.last_run_ended(job, reported).is_none_or(|ended| ended > reported);
    let moment = evidence.history[reported].at.saturating_sub(evidence.history[next].at);
    is_death && goes_on && moment < Duration::from_secs(5)
}

/// Returns whether a job was cancelled, and does not run under its lease when the next job begins, nor later.
/// The end of a cancelled job is recorded before its letter is stored, which the storage may refuse for a
/// long time.
fn was_cancelled(evidence: &Evidence, job: &str, next: usize) -> bool {
    let is_cancelled = |fact: &Fact| matches!(fact, Fact::Settled { outcome: Outcome::DeadLettered(reason), .. } if *reason == Reason::CANCELLED);
    let is_over = |run: &Run| {
        let is_stale = run.began < next && evidence.world.may_lose_lease(run.number, next);
        is_stale || run.ended.is_some_and(|ended| ended < next)
    };
    evidence.first(job, is_cancelled).is_some() && evidence.runs(job).iter().all(is_over)
}

/// Returns the first end of a job after which the next job of its key may run. `next` is the entry at which
/// the next job began.
fn end_before(evidence: &Evidence, job: &Sent<'_>, next: usize) -> Option<usize> {
    // The next job may begin between the copy to the dead letters and the report of the worker. A worker that
    // was stopped may end its run long after the death.
    let died = evidence.died(&job.id);
    let died = died.map(|died| evidence.last_run_ended(&job.id, died).map_or(died, |end| end.min(died)));
    // A job that has died and is redriven, or that has a second message, runs after the others. The worker
    // that dead-lettered it may never have reported that, or only later, because the letter could not be
    // stored at once.
    let comes_again = evidence.is_redriven(&job.id) || !is_single(evidence, &job.id);
    let may_die = job.script.reject || job.script.fail > 0 || died.is_some();
    let copy_came_later = (comes_again && may_die).then(|| evidence.ended_before(&job.id, next)).flatten();
    // The letter of a job that has not run yet, such as a cancelled job, is stored before its worker reports
    // it.
    let redriven = evidence.first(&job.id, |fact| matches!(fact, Fact::Redriven));
    let unrun = redriven.filter(|redriven| evidence.began(&job.id).is_none_or(|began| began > *redriven));
    [evidence.done(&job.id), died, copy_came_later, unrun].into_iter().flatten().min()
}

/// Returns a job in order that was sent alone or in a list.
fn single<'a>(evidence: &Evidence, spec: &'a Spec) -> Option<Sent<'a>> {
    if !spec.in_order || is_taken_over(evidence, &spec.id) {
        return None;
    }
    let began = evidence.first(&spec.id, |fact| matches!(fact, Fact::SendBegan { .. }))?;
    let is_ack = |fact: &Fact| matches!(fact, Fact::Sent { verdict: Verdict::Acknowledged, .. });
    Some(Sent {
        id: spec.id.clone(),
        key: spec.key.clone(),
        script: &spec.script,
        comes_late: evidence.diary.orders_by_sessions && spec.delay.is_some(),
        began,
        acknowledged: evidence.first(&spec.id, is_ack),
        place: evidence.diary.plan.place_in_list(&spec.id),
    })
}

/// Returns the children in order of a batch that was begun once. If a batch was begun again, some of its
/// children had been sent before, and not necessarily the first ones.
fn children<'a>(evidence: &Evidence, fan: &'a Fan, list: usize) -> Vec<Sent<'a>> {
    let notes = evidence.diary.notes();
    let mut begun = notes.iter().filter_map(|(number, note)| {
        matches!(note, Note::BatchBegins { id } if *id == fan.id).then_some(*number)
    });
    let sealed = notes.iter().find(|(_, note)| matches!(note, Note::Sealed { id } if *id == fan.id));
    let (Some(began), None, Some((sealed, _))) = (begun.next(), begun.next(), sealed) else {
        return Vec::new();
    };
    let sent_child = |(index, script)| {
        let options = fan.options_of(index);
        let comes_late = evidence.diary.orders_by_sessions && options.delay.is_some();
        let key = options.in_order?;
        let (id, acknowledged, place) = (child(fan, index), Some(*sealed), Some((list, index)));
        Some(Sent { id, key: Some(key), script, comes_late, began, acknowledged, place })
    };
    fan.children.iter().enumerate().filter_map(sent_child).collect()
}

/// Returns whether another sender may have sent its own message under the id of this unique job, because the
/// first sender, or a canceller, died or got no answer. The plan does not say whether that message is in
/// order.
fn is_taken_over(evidence: &Evidence, id: &str) -> bool {
    let is_unique = |what: &ActionKind| matches!(what, ActionKind::Unique { spec, .. } if spec.id == id);
    if !evidence.diary.plan.actions.iter().any(|action| is_unique(&action.what)) {
        return false;
    }
    let entry = |number: Option<usize>| number.and_then(|number| evidence.history.get(number));
    let began = entry(evidence.first(id, |fact| matches!(fact, Fact::SendBegan { .. })));
    let answered = entry(evidence.first(id, |fact| matches!(fact, Fact::Sent { .. })));
    let (Some(began), Some(answered)) = (began, answered) else { return true };
    let is_acknowledged = matches!(&answered.fact, Fact::Sent { verdict: Verdict::Acknowledged, .. });
    let died = evidence.history[began.number..answered.number]
        .iter()
        .any(|entry| entry.node == began.node && matches!(entry.fact, Fact::Incident(_)));
    !is_acknowledged || answered.node != began.node || died || is_put_again(evidence, id, answered.number)
}

/// Returns whether a process other than a worker puts a message of the job after its send and before any
/// redrive.
fn is_put_again(evidence: &Evidence, id: &str, sent: usize) -> bool {
    let later = evidence.history[sent..].iter().filter(|entry| is_of(entry, id));
    later
        .take_while(|entry| !matches!(entry.fact, Fact::Redriven))
        .any(|entry| matches!(entry.fact, Fact::PutBegan { .. }) && !entry.node.starts_with("worker"))
}
