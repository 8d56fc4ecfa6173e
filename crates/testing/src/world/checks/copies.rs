//! Decides whether a job had two messages at one moment, for a cause.

use std::collections::BTreeSet;
use std::sync::Arc;

use jobqueue::storage::Operation;

use super::evidence::{Job, is_of_dead_letters};
use crate::world::disturbance::Disturbance;
use crate::world::ledger::{Entry, Fact, Verdict};

/// A put of a message, and its answer if it had one.
struct Put<'a> {
    queue: &'a str,
    began: &'a Entry,
    answer: Option<(usize, Verdict)>,
}

impl Put<'_> {
    fn is_refused(&self) -> bool {
        self.answer.is_some_and(|(_, verdict)| verdict == Verdict::Refused)
    }

    fn is_acknowledged_before(&self, number: usize) -> bool {
        self.answer.is_some_and(|(answered, verdict)| verdict == Verdict::Acknowledged && answered < number)
    }
}

impl Job<'_> {
    /// Returns whether, before an entry, the job may have had two messages at one moment for a cause: the put
    /// of the first message was not acknowledged; the job was sent, or its letter stored, as often as the job
    /// was put; or, since the put of the first message, a process of this job was disturbed. A second message
    /// without a cause is a defect, and explains nothing.
    pub(super) fn has_copies(&self, before: usize) -> bool {
        let mut puts = self.puts().into_iter().filter(|put| !put.is_refused()).peekable();
        let mut stored: Vec<Put<'_>> = Vec::new();
        let (mut count, mut sends, mut letters) = (0, 0, 0);
        let mut removed: Vec<Put<'_>> = Vec::new();
        for entry in self.entries.iter().take_while(|entry| entry.number < before) {
            match &entry.fact {
                Fact::SendBegan { .. } => sends += 1,
                Fact::Deleted { queue } => removed.extend(remove(&mut stored, queue, entry.number)),
                // The storage moves the message to its own dead-letter queue.
                Fact::Changed { operation: Operation::DeadLetter, .. } => {
                    letters += 1;
                    stored.pop();
                }
                _ => {}
            }
            let Some(put) = puts.next_if(|put| put.began.number == entry.number) else { continue };
            if is_of_dead_letters(put.queue) {
                letters += 1;
                continue;
            }
            count += 1;
            let is_expected = count <= sends.max(1) + letters;
            let explains = |other: &Put<'_>| {
                is_expected
                    || !other.is_acknowledged_before(entry.number)
                    || self.was_disturbed(other.began.number, entry.number)
            };
            // Whoever got no answer, or could not record it, puts the message again, also if the first one is
            // gone by then.
            let is_unrecorded =
                |put: &Put<'_>| !put.is_acknowledged_before(before) || self.is_unrecorded(put, entry.number);
            if removed.iter().any(is_unrecorded) || stored.iter().any(explains) {
                return true;
            }
            stored.push(put);
        }
        false
    }

    /// Returns the puts of messages and letters, in the order in which they began.
    fn puts(&self) -> Vec<Put<'_>> {
        let mut puts: Vec<Put<'_>> = Vec::new();
        for entry in &self.entries {
            match &entry.fact {
                Fact::PutBegan { queue } => puts.push(Put { queue, began: entry, answer: None }),
                Fact::Put { queue, verdict, .. } => {
                    let is_own = |put: &&mut Put<'_>| {
                        put.answer.is_none() && put.began.node == entry.node && *put.queue == **queue
                    };
                    // A process that died without an answer may live again and put the message again.
                    if let Some(put) = puts.iter_mut().rev().find(is_own) {
                        put.answer = Some((entry.number, *verdict));
                    }
                }
                _ => {}
            }
        }
        puts
    }

    /// Returns whether the process of an answered put was stopped, or a call of it failed, before the send
    /// returned. The slot of a schedule is recorded before the next one is put.
    fn is_unrecorded(&self, put: &Put<'_>, before: usize) -> bool {
        let Some((answered, _)) = put.answer else { return true };
        let schedule = self.id.strip_prefix("schedule/").and_then(|slot| slot.rsplit_once('/'));
        if schedule.is_none() && !self.is_in_send(put.began) {
            return false;
        }
        let is_next_slot = |entry: &Entry| {
            let of = entry.job.as_deref().and_then(|id| id.strip_prefix("schedule/"));
            let of = of.and_then(|slot| slot.rsplit_once('/')).zip(schedule);
            of.is_some_and(|((of, slot), (own, own_slot))| of == own && slot != own_slot)
        };
        let mut entries = self.entries_between(answered, before);
        let is_stopped = entries.find_map(|entry| match &entry.fact {
            // Another leader may put it.
            Fact::PutBegan { .. } if is_next_slot(entry) => Some(false),
            _ if entry.node != put.began.node => None,
            Fact::Incident(disturbance) if disturbance.stops() => Some(true),
            Fact::Fault { operation, .. } if *operation != Operation::Get => Some(true),
            Fact::Sent { .. } if entry.job.as_ref() == Some(self.id) => Some(false),
            _ => None,
        });
        is_stopped.unwrap_or(false)
    }

    /// Returns whether a put belongs to a send of its process that has not returned.
    fn is_in_send(&self, put: &Entry) -> bool {
        let before = self.entries.iter().rev().filter(|entry| entry.number < put.number);
        let mut of_sends = before.filter(|entry| entry.node == put.node);
        of_sends
            .find_map(|entry| match entry.fact {
                Fact::SendBegan { .. } => Some(true),
                Fact::Sent { .. } => Some(false),
                _ => None,
            })
            .unwrap_or(false)
    }

    /// Returns whether, between two entries, a process of this job was stopped, ended without its deliveries,
    /// or made a call that failed. Failed gets do not count.
    fn was_disturbed(&self, since: usize, before: usize) -> bool {
        let own = self.entries.iter().filter(|entry| entry.number <= before);
        let nodes: BTreeSet<&Arc<str>> = own.map(|entry| &entry.node).collect();
        let disturbs = |fact: &Fact| match fact {
            Fact::Fault { operation, .. } => *operation != Operation::Get,
            Fact::Incident(Disturbance::WorkerEnded { abandoned, .. }) => *abandoned > 0,
            Fact::Incident(disturbance) => disturbance.stops(),
            _ => false,
        };
        self.entries_between(since, before).any(|entry| nodes.contains(&entry.node) && disturbs(&entry.fact))
    }
}

/// Removes and returns a message that was deleted from `queue`. If it is not known which one it was, a message whose put
/// was acknowledged goes first.
fn remove<'a>(stored: &mut Vec<Put<'a>>, queue: &str, number: usize) -> Option<Put<'a>> {
    let mut of_queue = stored.iter().enumerate().filter(|(_, put)| *put.queue == *queue);
    let acknowledged = of_queue.clone().find(|(_, put)| put.is_acknowledged_before(number));
    let (place, _) = acknowledged.or_else(|| of_queue.next())?;
    Some(stored.remove(place))
}
