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
        // Whoever got no answer puts the message again, also if the first one is gone by then.
        let mut unanswered = false;
        for entry in self.entries.iter().take_while(|entry| entry.number < before) {
            match &entry.fact {
                Fact::SendBegan { .. } => sends += 1,
                Fact::Deleted { queue } => {
                    let removed = remove(&mut stored, queue, entry.number);
                    unanswered |= removed.is_some_and(|put| !put.is_acknowledged_before(before));
                }
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
            if unanswered || stored.iter().any(explains) {
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
                    if let Some(put) = puts.iter_mut().find(is_own) {
                        put.answer = Some((entry.number, *verdict));
                    }
                }
                _ => {}
            }
        }
        puts
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
