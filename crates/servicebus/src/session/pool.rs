//! The sessions of a queue that one handle holds: up to one per free slot, and those whose messages are taken
//! or delayed.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use super::super::amqp::{GET_WAIT, Incoming, Links};
use super::super::error::Fault;
use super::acceptor;
use super::held::{Session, SessionReleaseGuard};
use jobqueue_storage::Notifier;
use jobqueue_storage::sync::lock;

/// The longest time for a get; the service normally answers earlier.
const GET_TIMEOUT: Duration = Duration::from_secs(60);
/// The time for which sessions are still accepted for the free slots of the last get.
const FREE_SLOT_LINGER: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct ClaimedMessage {
    pub(crate) lock: Uuid,
    pub(crate) message: Incoming,
    pub(crate) session: Arc<Session>,
    /// Releases the session if the message reaches no caller.
    pub(crate) guard: SessionReleaseGuard,
}

#[derive(Debug)]
pub(crate) struct GetResult {
    pub(crate) claimed: Vec<ClaimedMessage>,
    /// True if the service answered that no session with messages is free.
    pub(crate) confirmed_empty: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The next message is being requested, or the last one was settled.
    Asking,
    /// The message waits for a get.
    Offered,
    /// A get has taken the message.
    Out,
    /// The session is held until the delay of its message is over.
    Held,
    /// The session is being released; its messages are not visible yet.
    Closing,
}

/// The sessions of a queue. Dropping the pool releases them.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(super) shared: Arc<PoolCore>,
    _stop: DropGuard,
}

#[derive(Debug)]
pub(super) struct PoolCore {
    pub(super) queue: String,
    pub(super) links: Arc<Links>,
    /// Notified when a message arrives for which no get waits.
    pub(super) arrivals: Arc<Notifier>,
    pub(super) state: Mutex<PoolState>,
    pub(super) changed: Notify,
    /// Notified when there may be slots for more sessions.
    pub(super) demanded: Notify,
    pub(super) stop: CancellationToken,
}

/// The fault of an attach, returned to the gets up to the number `get`.
#[derive(Debug)]
pub(super) struct FailedAttach {
    pub(super) get: u64,
    pub(super) fault: Fault,
    pub(super) at: Instant,
}

#[derive(Debug, Default)]
pub(super) struct PoolState {
    /// The length of a lock, as passed by the last get.
    pub(super) longest_lock: Duration,
    pub(super) offers: VecDeque<ClaimedMessage>,
    pub(super) phases: HashMap<u64, Phase>,
    pub(super) last_session: u64,
    pub(super) gets: Vec<(u64, u32)>,
    /// The slots that the last get left free.
    free_slots: FreeSlots,
    pub(super) last_get: u64,
    /// True while the service waits long for a session, on behalf of a subscription.
    pub(super) is_patient: bool,
    /// The time after which the pending answer of the service is overdue.
    pub(super) overdue_at: Option<Instant>,
    /// The number of the last get that began before the service answered that no session is free.
    pub(super) emptied: u64,
    /// The fault of the last attach, for gets up to this number.
    pub(super) failed: Option<FailedAttach>,
}

#[derive(Debug, Default)]
struct FreeSlots {
    count: u32,
    /// True after a get that found nothing: the slots stay free while there is a subscription.
    is_idle: bool,
    /// True if the service answered to that get that no session is free.
    confirmed_empty: bool,
    until: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Demand {
    /// The last get that began before the attach.
    pub(super) get: u64,
    /// True if the answer "no session is free" proves that no message is visible.
    pub(super) is_decisive: bool,
    /// True if a get waits for the answer.
    pub(super) is_awaited: bool,
    /// True if the service may wait long, which would delay the empty answer to a concurrent get.
    pub(super) is_patient: bool,
}

impl Pool {
    pub(crate) fn new(queue: &str, links: &Arc<Links>) -> Self {
        let arrivals = links.arrivals(queue);
        let stop = CancellationToken::new();
        let shared = PoolCore {
            queue: queue.to_owned(),
            links: Arc::clone(links),
            arrivals,
            state: Mutex::default(),
            changed: Notify::new(),
            demanded: Notify::new(),
            stop: stop.clone(),
        };
        let shared = Arc::new(shared);
        drop(links.runtime().spawn(acceptor::run(Arc::clone(&shared))));
        Self { shared, _stop: stop.drop_guard() }
    }

    /// Returns whether the tasks of the pool have ended, for example with their runtime.
    pub(crate) fn is_gone(&self) -> bool {
        self.shared.stop.is_cancelled()
    }

    /// Takes up to `count` messages, each from a different session, with locks of at most `longest_lock`.
    /// Waits for the first message until the service answers that no session with messages is free, or that
    /// answer is overdue. While the service waits long on behalf of a subscription, this call waits only for
    /// [`GET_WAIT`]. The result says whether the service has confirmed that no message is visible.
    ///
    /// # Cancel safety
    /// If the future is dropped, a message that arrives for it goes to the next get, or back to the service.
    /// A message that was returned and is not settled is delivered again when the lock of its session ends.
    pub(crate) async fn get(&self, count: u32, longest_lock: Duration) -> Result<GetResult, Fault> {
        let shared = &*self.shared;
        let get = PendingGet::begin(shared, count, longest_lock);
        let (begun, mut is_late) = (Instant::now(), false);
        let (mut claimed, mut confirmed_empty) = (Vec::new(), false);
        loop {
            let changed = shared.changed.notified();
            tokio::pin!(changed);
            // Enabled before the state is read, so that no change is missed.
            changed.as_mut().enable();
            let overdue_at = {
                let mut state = lock(&shared.state);
                while claimed.len() < count as usize
                    && let Some(offer) = state.offers.pop_front()
                {
                    state.phases.insert(offer.session.number(), Phase::Out);
                    claimed.push(offer);
                }
                confirmed_empty |= state.emptied >= get.number;
                if !claimed.is_empty() || confirmed_empty {
                    break;
                }
                let is_overdue = state.overdue_at.is_some_and(|at| at <= Instant::now());
                if is_late && (state.is_patient || is_overdue || begun.elapsed() >= GET_TIMEOUT) {
                    break;
                }
                if let Some(failed) = &state.failed
                    && failed.get >= get.number
                {
                    return Err(failed.fault.clone());
                }
                state.overdue_at
            };
            shared.accept();
            let is_short = shared.arrivals.has_subscribers() && !is_late;
            let last = overdue_at.map_or(begun + GET_TIMEOUT, |at| at.min(begun + GET_TIMEOUT));
            let until = if is_short { begun + GET_WAIT } else { last };
            tokio::select! {
                biased;
                () = changed => {}
                () = sleep_until(until) => is_late = true,
            }
        }
        get.end(claimed.len(), confirmed_empty);
        shared.accept();
        Ok(GetResult { claimed, confirmed_empty })
    }
}

struct PendingGet<'s> {
    shared: &'s PoolCore,
    number: u64,
    count: u32,
}

impl<'s> PendingGet<'s> {
    fn begin(shared: &'s PoolCore, count: u32, longest_lock: Duration) -> Self {
        let mut state = lock(&shared.state);
        state.longest_lock = longest_lock;
        // A failed attach long before this get does not show the state of the service now.
        if state.failed.as_ref().is_some_and(|failed| failed.at.elapsed() > GET_TIMEOUT) {
            state.failed = None;
        }
        state.last_get += 1;
        let number = state.last_get;
        state.gets.push((number, count));
        state.free_slots = FreeSlots::default();
        Self { shared, number, count }
    }

    fn end(self, found: usize, confirmed_empty: bool) {
        let left = self.count.saturating_sub(u32::try_from(found).unwrap_or(u32::MAX));
        let mut state = lock(&self.shared.state);
        let count = state.free_slots.count.max(left);
        state.free_slots = FreeSlots {
            count,
            is_idle: found == 0,
            confirmed_empty,
            until: Some(Instant::now() + FREE_SLOT_LINGER),
        };
    }
}

impl Drop for PendingGet<'_> {
    fn drop(&mut self) {
        lock(&self.shared.state).gets.retain(|(number, _)| *number != self.number);
    }
}

impl PoolCore {
    /// Changes the state, and wakes all waiters.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut PoolState) -> R) -> R {
        let result = change(&mut lock(&self.state));
        self.changed.notify_waiters();
        self.accept();
        result
    }

    /// Lets the acceptor check whether there are slots for more sessions.
    pub(super) fn accept(&self) {
        self.demanded.notify_one();
    }

    pub(super) fn demand(&self, state: &PoolState) -> Option<Demand> {
        let awaited = state.gets.iter().map(|(_, count)| *count).fold(0, u32::saturating_add);
        let free = &state.free_slots;
        let is_resting = free.until.is_some_and(|until| Instant::now() < until);
        let is_idle = free.is_idle && self.arrivals.has_subscribers();
        let slots = match awaited {
            0 if is_resting || is_idle => free.count,
            awaited => awaited,
        };
        let coming = state.count(Phase::Asking) + state.count(Phase::Offered);
        (slots as usize > coming).then_some(Demand {
            get: state.last_get,
            is_decisive: coming == 0 && state.count(Phase::Closing) == 0,
            is_awaited: awaited > 0,
            // Without a subscription or a notification, the next get has to find out whether there is a
            // message.
            is_patient: awaited == 0 && is_idle && (free.confirmed_empty || !is_resting),
        })
    }

    /// Records the phase of a session, unless the session was released.
    pub(super) fn set_phase(&self, number: u64, phase: Phase) {
        self.change(|state| {
            if let Some(present) = state.phases.get_mut(&number) {
                *present = phase;
            }
        });
    }
}

impl PoolState {
    pub(super) fn count(&self, phase: Phase) -> usize {
        self.phases.values().filter(|present| **present == phase).count()
    }

    /// Records that the slots that the last get left free are in use by now.
    pub(super) fn forget_free_slots(&mut self) {
        self.free_slots = FreeSlots::default();
    }
}
