//! The limits that an application sets, and their resolution for the queues of a worker.

use std::collections::BTreeMap;

use super::rate::RateLimit;
use super::shares::{Share, Shares};
use crate::delivery::Registry;
use crate::error::{Error, ErrorKind};
use crate::presence::{KindLimits, ListeningQueue};
use crate::storage::QueueName;

/// Limits one queue within one worker. Given to
/// [`WorkerBuilder::limit_queue`](crate::WorkerBuilder::limit_queue).
///
/// Every worker counts for itself: three workers with a limit of 4 run up to 12 jobs at once.
///
/// ```
/// use jobqueue::worker::QueueLimits;
///
/// let limits = QueueLimits::new().concurrency(4).weight(3);
/// # let _ = limits;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    concurrency: Option<usize>,
    weight: u32,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self { concurrency: None, weight: 1 }
    }
}

impl QueueLimits {
    /// Returns limits that limit nothing: no maximum concurrency, and a weight of 1.
    pub fn new() -> Self {
        Self::default()
    }

    jobqueue_storage::setters! {
        /// Sets the maximum number of handlers of the queue that run at the same time in this worker. The
        /// worker's own concurrency applies as well.
        concurrency(jobs: usize) => concurrency;

        /// Sets the queue's share of the worker's slots while several queues have work: a queue of weight 3
        /// gets three times as many as one of weight 1. The default is 1. While the other queues have no
        /// work, a queue may have more than its share.
        ///
        /// The weights also divide the [concurrency](HandlerLimits::concurrency) of a kind among the queues
        /// that have a handler of this kind only. Shares are whole jobs: two queues with weights of 4 and 1
        /// have equal shares of 2 places. If jobs wait for a shared [`RateLimit`], or for a limit of their
        /// kind in a queue of several kinds, the weight has no effect.
        weight(weight: u32);
    }
}

/// Limits the handler of one kind within one worker. Given to
/// [`WorkerBuilder::limit`](crate::WorkerBuilder::limit).
///
/// ```
/// use jobqueue::worker::{HandlerLimits, RateLimit};
/// use std::time::Duration;
///
/// let provider = RateLimit::new(10, Duration::from_secs(1));
/// let limits = HandlerLimits::new().concurrency(2).rate(&provider);
/// # let _ = limits;
/// ```
#[derive(Debug, Clone, Default)]
pub struct HandlerLimits {
    concurrency: Option<usize>,
    rate: Option<RateLimit>,
}

impl HandlerLimits {
    /// Returns limits that limit nothing.
    pub fn new() -> Self {
        Self::default()
    }

    jobqueue_storage::setters! {
        /// Sets the maximum number of jobs of the kind that run at the same time in this worker, over all its
        /// queues.
        concurrency(jobs: usize) => concurrency;

        /// Sets the maximum rate at which jobs of the kind begin. All handlers with the same limiter, or
        /// clones of it, share the rate.
        rate(limit: &RateLimit) => rate = Some(limit.clone());
    }
}

#[derive(Debug, Default)]
pub(in crate::worker) struct LimitSettings {
    pub(in crate::worker) queues: BTreeMap<String, QueueLimits>,
    pub(in crate::worker) handlers: BTreeMap<&'static str, HandlerLimits>,
}

#[derive(Debug)]
pub(super) struct HandlerLimit {
    /// The index of the handler's count, if its concurrency is limited.
    pub(super) count: Option<usize>,
    pub(super) rate: Option<RateLimit>,
}

/// The limits, resolved for the queues of a worker in the order of their names.
#[derive(Debug)]
pub(super) struct Resolved<W> {
    pub(super) shares: Shares<W>,
    pub(super) handlers: BTreeMap<&'static str, HandlerLimit>,
    /// For each queue, the limiter that all of its handlers share, if they do.
    pub(super) rates: Vec<Option<RateLimit>>,
}

impl LimitSettings {
    /// Checks that every limit has a queue or a handler, and lets at least one job run.
    pub(in crate::worker) fn check(&self, registry: &Registry) -> Result<(), Error> {
        let fail = |text: String| Err(Error::new(ErrorKind::Configuration, text));
        for (queue, limits) in &self.queues {
            if !registry.0.keys().any(|name| name.as_str() == queue) {
                return fail(format!("a limit was set for the queue `{queue}`, which has no handler"));
            }
            if limits.concurrency == Some(0) {
                return fail(format!(
                    "a concurrency of 0 for the queue `{queue}` runs nothing; give at least 1"
                ));
            }
            if limits.weight == 0 {
                return fail(format!("a weight of 0 for the queue `{queue}` runs nothing; give at least 1"));
            }
        }
        for (kind, limits) in &self.handlers {
            if !registry.0.values().any(|queue| queue.kinds().any(|handled| handled == *kind)) {
                return fail(format!("a limit was set for the kind `{kind}`, which has no handler"));
            }
            if limits.concurrency == Some(0) {
                return fail(format!(
                    "a concurrency of 0 for the kind `{kind}` runs nothing; give at least 1"
                ));
            }
        }
        Ok(())
    }

    /// Checks that the jobs of one call of a handler can all have slots at the same time.
    pub(in crate::worker) fn check_chunks(
        &self,
        concurrency: usize,
        registry: &Registry,
    ) -> Result<(), Error> {
        let shares = self.resolve::<()>(concurrency, registry).shares;
        for (number, (queue, handlers)) in registry.0.iter().enumerate() {
            for handler in handlers.all().filter(|handler| handler.chunk > 1) {
                let own = self.handlers.get(handler.kind).and_then(|limits| limits.concurrency);
                let (chunk, slots) = (handler.chunk, shares.max_slots(number).min(own.unwrap_or(usize::MAX)));
                if chunk > slots {
                    let text = format!(
                        "the handler for `{}` takes up to {chunk} jobs at once, and at most {slots} jobs of the queue `{queue}` run at once in this worker; raise its `.concurrency(…)` or the limits, or take fewer jobs",
                        handler.kind
                    );
                    return Err(Error::new(ErrorKind::Configuration, text));
                }
            }
        }
        Ok(())
    }

    /// Warns of each queue whose limit is above the slots that the queue can have.
    pub(in crate::worker) fn warn_of_unreachable(&self, concurrency: usize, registry: &Registry) {
        let shares = self.resolve::<()>(concurrency, registry).shares;
        for (number, queue) in registry.0.keys().enumerate() {
            let slots = shares.max_slots(number);
            if let Some(limit) = self.of_queue(queue).concurrency.filter(|limit| *limit > slots) {
                crate::log::warn!(
                    %queue,
                    limit,
                    slots,
                    concurrency,
                    "the limit of the queue is above the number of slots that it can have in this worker"
                );
            }
        }
    }

    pub(super) fn resolve<W>(&self, concurrency: usize, registry: &Registry) -> Resolved<W> {
        let mut counts = Vec::new();
        let mut handlers = BTreeMap::new();
        for (kind, limits) in &self.handlers {
            let count = limits.concurrency.map(|limit| {
                counts.push(limit);
                counts.len() - 1
            });
            handlers.insert(*kind, HandlerLimit { count, rate: limits.rate.clone() });
        }
        let (mut queues, mut rates) = (Vec::new(), Vec::new());
        for (queue, of_queue) in &registry.0 {
            let limits = |kind| handlers.get(kind);
            let counted = of_queue.kinds().map(|kind| limits(kind).and_then(|limit| limit.count)).collect();
            let own = self.of_queue(queue);
            queues.push(Share::new(own.weight, own.concurrency.unwrap_or(usize::MAX), counted));
            rates.push(shared_limiter(
                of_queue.kinds().map(|kind| limits(kind).and_then(|limit| limit.rate.as_ref())),
            ));
        }
        Resolved { shares: Shares::new(concurrency, queues, counts), handlers, rates }
    }

    pub(in crate::worker) fn record_entries(
        &self,
        concurrency: usize,
        registry: &Registry,
    ) -> Vec<ListeningQueue> {
        let shares = self.resolve::<()>(concurrency, registry).shares;
        let queues = registry.0.iter().enumerate().map(|(number, (name, handlers))| {
            let queue = ListeningQueue::new(name.to_string(), handlers.all_kinds());
            let limits = handlers.all().filter_map(|handler| {
                let limits = self.handlers.get(handler.kind)?;
                let rate = limits.rate.as_ref().map(RateLimit::per_second);
                Some(KindLimits::new(handler.kind, &handler.kinds, limits.concurrency, rate))
            });
            ListeningQueue {
                concurrency: self.of_queue(name).concurrency.map(|jobs| jobs as u64),
                reserved: shares.reserved(number) as u64,
                limits: limits.collect(),
                ..queue
            }
        });
        queues.collect()
    }

    fn of_queue(&self, queue: &QueueName) -> QueueLimits {
        self.queues.get(queue.as_str()).copied().unwrap_or_default()
    }
}

/// Returns the limiter that all handlers share, if they do.
fn shared_limiter<'r>(mut rates: impl Iterator<Item = Option<&'r RateLimit>>) -> Option<RateLimit> {
    let first = rates.next()??;
    rates.all(|rate| rate.is_some_and(|rate| rate.is_same(first))).then(|| first.clone())
}
