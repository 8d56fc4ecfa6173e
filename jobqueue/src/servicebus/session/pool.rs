//! The sessions of a queue that one handle holds: as many as there are free slots, and those whose messages are out.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::super::amqp::Links;
use super::super::amqp::receiver::Taken;
use super::super::error::Fault;
use super::acceptor;
use super::held::Session;
use super::lines::Lines;
use crate::storage::Notifier;
use crate::sync::lock;
use crate::task;

/// The longest time for a get: the service answers before.
const LIMIT: Duration = Duration::from_secs(60);
/// The time after a get that found messages in which sessions are accepted for the slots that it has left free.
const REST: Duration = Duration::from_millis(100);

/// A message that waits for a get.
#[derive(Debug)]
pub(in crate::servicebus) struct Claimed {
    pub(in crate::servicebus) taken: Taken,
    pub(in crate::servicebus) session: Arc<Session>,
    /// True if the message may have been delivered before.
    pub(in crate::servicebus) is_first: bool,
}

/// The sessions of a queue. Dropping it releases them.
#[derive(Debug)]
pub(in crate::servicebus) struct Pool {
    pub(super) shared: Arc<Shared>,
    _stop: DropGuard,
}

/// What the tasks of the sessions share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) queue: String,
    /// For requests about sessions.
    pub(super) links: Arc<Links>,
    pub(super) lines: Lines,
    /// The time that a get and a session wait for a message.
    pub(super) wait: Duration,
    /// Notified when a message comes that no get waits for.
    pub(super) arrivals: Arc<Notifier>,
    pub(super) state: Mutex<State>,
    /// Notified when the state changes.
    pub(super) changed: Notify,
    /// Notified when there may be slots for more sessions.
    pub(super) demanded: Notify,
    pub(super) stop: CancellationToken,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) offers: VecDeque<Claimed>,
    /// The sessions that ask for their next message.
    pub(super) asking: usize,
    /// The sessions that are being released.
    pub(super) closing: usize,
    /// The slots of the gets that are under way.
    gets: Vec<(u64, u32)>,
    /// The slots that the last get has left free.
    standing: Standing,
    /// The number of the last get.
    last_get: u64,
    /// The gets up to this number have seen that no session is free.
    pub(super) emptied: u64,
    /// The fault of the last attach, for gets up to this number.
    pub(super) failed: Option<(u64, Fault)>,
}

#[derive(Debug, Default)]
struct Standing {
    slots: u32,
    /// True after a get that found nothing: they stay free while somebody waits for arrivals.
    is_idle: bool,
    until: Option<Instant>,
}

/// A session that is to be accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Demand {
    /// The last get before the attach.
    pub(super) get: u64,
    /// True if an answer that no session is free says that no message is visible.
    pub(super) is_telling: bool,
    /// True if a get waits for the answer.
    pub(super) is_awaited: bool,
}

impl Pool {
    pub(in crate::servicebus) fn new(
        queue: &str,
        links: &Arc<Links>,
        wait: Duration,
        arrivals: Arc<Notifier>,
    ) -> Self {
        let stop = CancellationToken::new();
        let shared = Shared {
            queue: queue.to_owned(),
            links: Arc::clone(links),
            lines: Lines::new(Arc::clone(links)),
            wait,
            arrivals,
            state: Mutex::default(),
            changed: Notify::new(),
            demanded: Notify::new(),
            stop: stop.clone(),
        };
        let shared = Arc::new(shared);
        drop(task::spawn(acceptor::run(Arc::clone(&shared))));
        Self { shared, _stop: stop.drop_guard() }
    }

    /// Returns whether the tasks of the sessions have ended, as with the runtime that ran them.
    pub(in crate::servicebus) fn is_gone(&self) -> bool {
        self.shared.stop.is_cancelled()
    }

    /// Takes up to `count` messages, each of another session; waits for the first until the service says that no session with
    /// messages is free, or while somebody waits for arrivals, for the time of a get.
    ///
    /// # Cancel safety
    /// A message that comes for a future that was dropped goes to the next get, or back. One that was returned, and is not settled,
    /// comes again when the lock of its session is over.
    pub(in crate::servicebus) async fn get(&self, count: u32) -> Result<Vec<Claimed>, Fault> {
        let shared = &*self.shared;
        let get = Get::begin(shared, count);
        let (begun, mut found) = (Instant::now(), Vec::new());
        loop {
            let changed = shared.changed.notified();
            tokio::pin!(changed);
            // Enabled before the state is read, so that no change is missed.
            changed.as_mut().enable();
            {
                let mut state = lock(&shared.state);
                while found.len() < count as usize
                    && let Some(offer) = state.offers.pop_front()
                {
                    found.push(offer);
                }
                if !found.is_empty() || state.emptied >= get.number {
                    break;
                }
                if let Some((number, fault)) = &state.failed
                    && *number >= get.number
                {
                    return Err(fault.clone());
                }
            }
            shared.accept();
            let until = begun + if shared.arrivals.has_subscribers() { shared.wait } else { LIMIT };
            tokio::select! {
                biased;
                () = changed => {}
                () = sleep_until(until) => break,
            }
        }
        get.end(found.len());
        shared.accept();
        Ok(found)
    }
}

/// A get that is under way.
struct Get<'s> {
    shared: &'s Shared,
    number: u64,
    count: u32,
}

impl<'s> Get<'s> {
    fn begin(shared: &'s Shared, count: u32) -> Self {
        let mut state = lock(&shared.state);
        state.last_get += 1;
        let number = state.last_get;
        state.gets.push((number, count));
        state.standing = Standing::default();
        Self { shared, number, count }
    }

    fn end(self, found: usize) {
        let left = self.count.saturating_sub(u32::try_from(found).unwrap_or(u32::MAX));
        let mut state = lock(&self.shared.state);
        let slots = state.standing.slots.max(left);
        state.standing = Standing { slots, is_idle: found == 0, until: Some(Instant::now() + REST) };
    }
}

impl Drop for Get<'_> {
    fn drop(&mut self) {
        lock(&self.shared.state).gets.retain(|(number, _)| *number != self.number);
    }
}

impl Shared {
    /// Changes the state, and wakes those who wait for that.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = change(&mut lock(&self.state));
        self.changed.notify_waiters();
        self.accept();
        result
    }

    /// Begins to accept sessions if there are slots for them.
    pub(super) fn accept(&self) {
        self.demanded.notify_one();
    }

    /// Returns whether a session is to be accepted.
    pub(super) fn demand(&self, state: &State) -> Option<Demand> {
        let awaited = state.gets.iter().map(|(_, count)| *count).fold(0, u32::saturating_add);
        let is_standing = state.standing.until.is_some_and(|until| Instant::now() < until)
            || state.standing.is_idle && self.arrivals.has_subscribers();
        let slots = match awaited {
            0 if is_standing => state.standing.slots,
            awaited => awaited,
        };
        let coming = state.asking + state.offers.len();
        (slots as usize > coming).then_some(Demand {
            get: state.last_get,
            is_telling: state.closing == 0 && coming == 0,
            is_awaited: awaited > 0,
        })
    }
}

impl State {
    /// Notes that the slots which the last get has left free are in use by now.
    pub(super) fn forget_standing(&mut self) {
        self.standing = Standing::default();
    }
}
