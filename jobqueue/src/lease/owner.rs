//! The lease of one delivery: the owner of its pop receipt, and its end. This file sends no request; its
//! neighbours do.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::LeaseError;
use super::deadline_queue::DeadlineKey;
use super::schedule::margin;
use super::terms::{LeaseTerms, LeasedQueue};
use crate::event::{Event, LossCause};
use crate::storage::{LeasedMessage, MessageId, MessageRef, PopReceipt, StoreError};
use crate::sync::{StopToken, lock};

/// The minimum time for which a lease is renewed before its run begins: enough for the longest wait for a
/// turn, and for the largest payload.
const MAX_PREPARATION: Duration = Duration::from_secs(15 * 60);

/// The first renewal of a lease shorter than this has no time to wait for a connection.
const SHORT_LEASE: Duration = Duration::from_secs(20);

/// The reason why the work on a message must stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The storage says that another worker has the message, or that the message is gone.
    Taken,
    /// The deadline passed before a renewal succeeded, or the message's time to live is over.
    Expired,
    /// The job has exceeded its maximum run time. This process owns the message until the deadline.
    MaxRunTime,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Held,
    /// An update was applied, but its new receipt is unknown. This process owns the message until the
    /// deadline.
    Uncertain,
    Lost(Loss),
    Closed,
}

/// The state of a transaction that changes the message.
#[derive(Debug)]
pub(super) enum TransactionState {
    /// No transaction has changed the message.
    None,
    /// The transaction was rolled back, and has not completed the job. Another may.
    RolledBack,
    /// The transaction is not known to have ended. If it commits, the message has this receipt.
    Open(PopReceipt),
    /// The previous receipt was refused, so the lease uses the transaction's receipt. If that is valid, the
    /// transaction has committed.
    Tried,
    /// The handler has ended, and no transaction can change the message any more.
    Over,
}

#[derive(Debug)]
pub(super) struct ReceiptState {
    pub(super) receipt: PopReceipt,
    /// The time before which no other worker can lease the message, counted from before the request was sent.
    pub(super) deadline: Instant,
    /// The length of the lease: as requested, or shorter if the storage granted less.
    pub(super) length: Duration,
    /// The time until which the message is hidden if an unanswered update was applied.
    pub(super) unanswered_until: Option<Instant>,
    pub(super) phase: Phase,
    pub(super) transaction: TransactionState,
    /// The error of a common request that may have deleted the message, until the message is deleted alone.
    pub(super) undecided_deletion: Option<StoreError>,
    /// True if the job has exceeded its maximum run time: the token has fired, and the lease is still held.
    pub(super) overrun: bool,
    /// The end of the maximum run time; before the run begins, the end of its preparation.
    pub(super) run_until: Instant,
    /// The time at which renewals end: `run_until`, or the end of the handler's grace.
    pub(super) renewed_until: Instant,
    pub(super) deadline_key: Option<DeadlineKey>,
}

#[derive(Debug)]
pub(crate) struct Lease {
    pub(super) queue: Arc<LeasedQueue>,
    pub(super) id: MessageId,
    pub(super) terms: LeaseTerms,
    /// Locked by the operation in progress.
    pub(super) turn: tokio::sync::Mutex<()>,
    state: Mutex<ReceiptState>,
    /// The time at which the message expires. A storage refuses to hide it for longer.
    pub(super) expires: Option<Instant>,
    pub(super) stop: StopToken,
    /// The task that waits for an early end of the lease, if the storage reports it.
    watch: OnceLock<AbortOnDropHandle<()>>,
    pub(super) this: Weak<Lease>,
}

impl Lease {
    /// Takes over a message whose request was sent at `requested`. The renewer renews the lease from now on.
    pub(crate) fn start(
        queue: Arc<LeasedQueue>,
        leased: &LeasedMessage,
        requested: Instant,
        terms: LeaseTerms,
    ) -> Arc<Self> {
        let now = Instant::now();
        let granted = leased.granted.unwrap_or(terms.visibility);
        let visible = requested + granted;
        // Both times are by the storage's clock; the lease counts from before the request. A message may be
        // leased beyond its time to live.
        let expires = leased.expires.and_then(|expires| match expires.duration_since(leased.next_visible) {
            Ok(beyond) => visible.checked_add(beyond),
            Err(before) => visible.checked_sub(before.duration()),
        });
        // A storage may lock the message for longer than requested. The lease may also have begun long after
        // the request: a get may wait for its first message, and ask shards one after the other.
        let lease_end = visible.min(now + terms.visibility);
        let deadline = expires.map_or(lease_end, |expires| lease_end.min(expires));
        let length = granted.min(terms.visibility);
        let run_until = now + terms.max_run_time.max(MAX_PREPARATION);
        let lease = Arc::new_cyclic(|this| Self {
            queue,
            id: leased.message.id.clone(),
            expires,
            terms,
            turn: tokio::sync::Mutex::new(()),
            state: Mutex::new(ReceiptState {
                receipt: leased.message.receipt.clone(),
                deadline,
                length,
                unanswered_until: None,
                phase: Phase::Held,
                transaction: TransactionState::None,
                undecided_deletion: None,
                overrun: false,
                run_until,
                renewed_until: run_until,
                deadline_key: None,
            }),
            stop: StopToken::default(),
            watch: OnceLock::new(),
            this: this.clone(),
        });
        lease.schedule(&mut lease.state());
        lease.watch_end(leased);
        if lease_end.saturating_duration_since(now) < SHORT_LEASE
            && let Some(warm_up) = lease.queue.renewer_store.warm_up(&lease.queue.name)
        {
            lease.queue.renewer.spawn(warm_up);
        }
        lease
    }

    /// Ends the lease if the storage revokes it early.
    fn watch_end(&self, leased: &LeasedMessage) {
        let queue = &self.queue;
        let Some(revoked) = queue.store.lease_revoked(&queue.name, &leased.message) else { return };
        let this = self.this.clone();
        let watch = async move {
            revoked.await;
            if let Some(lease) = this.upgrade() {
                lease.lose(lease.state(), Loss::Taken);
            }
        };
        let _ = self.watch.set(AbortOnDropHandle::new(queue.renewer.start(watch)));
    }

    pub(crate) fn message_id(&self) -> &MessageId {
        &self.id
    }

    pub(crate) fn max_run_time(&self) -> Duration {
        self.terms.max_run_time
    }

    /// Returns the token that fires when the work on the message must stop: either the lease is lost, in
    /// which case it fires before another worker can have the message; or the job has exceeded its maximum
    /// run time, while this process still has the message. For the loss alone, see [`ended`](Self::ended).
    pub(crate) fn stop_token(&self) -> &CancellationToken {
        self.stop.get()
    }

    /// Returns the rest of the message's time to live, independent of this machine's clock; `None` if the
    /// message does not expire.
    pub(crate) fn left_to_live(&self) -> Option<Duration> {
        self.expires.map(|expires| expires.saturating_duration_since(Instant::now()))
    }

    /// Waits until the lease is lost. Exceeding the maximum run time does not lose it.
    pub(crate) async fn ended(&self) {
        self.stop_token().cancelled().await;
        while self.check_not_ended().is_ok() {
            let give_up = self.give_up_at(&self.state());
            tokio::time::sleep_until(give_up).await;
        }
    }

    /// Returns why the work must stop: the lease is lost, or the maximum run time is over. Checks the clock,
    /// because the renewer may be late.
    pub(crate) fn loss(&self) -> Option<Loss> {
        let state = self.state_by_clock();
        match state.phase {
            Phase::Lost(loss) => Some(loss),
            _ => state.overrun.then_some(Loss::MaxRunTime),
        }
    }

    /// Returns whether the lease has ended because its message has expired, so that no other worker runs the
    /// job.
    pub(crate) fn has_ended_with_message(&self) -> bool {
        let state = self.state_by_clock();
        state.phase == Phase::Lost(Loss::Expired) && self.lasts_until_expiry(&state)
    }

    /// Ends the lease because the delivery could not renew something else that it needs.
    pub(crate) fn expire(&self) {
        self.lose(self.state(), Loss::Expired);
    }

    /// Returns whether an answer was lost, so that the receipt may be outdated.
    pub(crate) fn is_uncertain(&self) -> bool {
        let state = self.state();
        state.phase == Phase::Uncertain || state.unanswered_until.is_some()
    }

    /// Begins the run, whose maximum time counts from now. Returns false if the run may not begin: the lease
    /// is not held, is about to end, or its receipt is outdated. This is where a process that was suspended
    /// finds out, before it does anything a second time.
    pub(crate) fn begin_run(&self) -> bool {
        let mut state = self.state_by_clock();
        if state.phase != Phase::Held || state.overrun {
            return false;
        }
        if self.is_about_to_expire() {
            self.lose(state, Loss::Expired);
            return false;
        }
        let was_due = state.run_until;
        state.run_until = Instant::now() + self.terms.max_run_time;
        state.renewed_until = state.run_until;
        if state.run_until < was_due {
            self.schedule(&mut state);
        }
        true
    }

    /// Checks that the lease has not ended, by its state and by the clock of this process.
    ///
    /// # Errors
    /// [`LeaseError::Lost`] or [`LeaseError::Closed`].
    pub(crate) fn check_not_ended(&self) -> Result<(), LeaseError> {
        match self.state_by_clock().phase {
            Phase::Held | Phase::Uncertain => Ok(()),
            Phase::Lost(_) => Err(LeaseError::Lost),
            Phase::Closed => Err(LeaseError::Closed),
        }
    }

    /// Returns the state after checking the clock: the renewer may be late in recording the loss.
    fn state_by_clock(&self) -> MutexGuard<'_, ReceiptState> {
        let state = self.state();
        if matches!(state.phase, Phase::Held | Phase::Uncertain) && Instant::now() >= self.give_up_at(&state)
        {
            self.lose(state, Loss::Expired);
            return self.state();
        }
        state
    }

    /// Returns the part of its `grace` for which a cancelled handler may still run: until shortly before
    /// another worker can get the message.
    pub(crate) fn grace(&self, grace: Duration) -> Duration {
        let state = self.state();
        let last = state.deadline - margin(&state) / 10;
        grace.min(last.saturating_duration_since(Instant::now()))
    }

    /// Keeps renewing for the grace of a handler whose token has fired, or for the work after its end. Renews
    /// even beyond the maximum run time, because the end of the attempt must still be recorded. A handler
    /// that blocks its thread has no grace. Returns the time at which renewals end.
    pub(crate) fn renew_for(&self, grace: Duration) -> Instant {
        let mut state = self.state();
        let until = Instant::now() + grace;
        // Otherwise the scheduled renewal stays where it is.
        if until > state.renewed_until {
            state.renewed_until = until;
            self.schedule(&mut state);
        }
        state.renewed_until
    }

    /// Returns the time before which no other worker can lease the message.
    pub(crate) fn deadline(&self) -> Instant {
        self.state().deadline
    }

    /// Returns how much time is left until another worker can lease the message.
    pub(crate) fn time_left(&self) -> Duration {
        self.deadline().saturating_duration_since(Instant::now())
    }

    pub(super) fn state(&self) -> MutexGuard<'_, ReceiptState> {
        lock(&self.state)
    }

    pub(super) fn weak(&self) -> Weak<Self> {
        self.this.clone()
    }

    pub(super) fn message(&self) -> MessageRef {
        MessageRef { id: self.id.clone(), receipt: self.state().receipt.clone() }
    }

    /// Ends the lease. Unlocks the state before it calls the listeners: one that asks the context of the job
    /// locks the state again.
    pub(super) fn lose(&self, mut state: MutexGuard<'_, ReceiptState>, loss: Loss) {
        self.unschedule(&mut state);
        if !matches!(state.phase, Phase::Held | Phase::Uncertain) {
            return;
        }
        state.phase = Phase::Lost(loss);
        self.stop.fire();
        crate::log::debug!(queue = %self.queue.name, message = %self.id, ?loss, "lease lost");
        let cause = match loss {
            Loss::Taken => LossCause::Taken,
            // The message has expired, so no renewal was missed.
            _ if self.lasts_until_expiry(&state) => return,
            _ => LossCause::Expired,
        };
        drop(state);
        self.queue.observers.emit(|| Event::LeaseLost { queue: self.queue.name.clone(), cause });
    }

    pub(super) fn close(&self, state: &mut ReceiptState) {
        self.unschedule(state);
        state.phase = Phase::Closed;
    }

    /// Stops renewing and fires the token. The message becomes visible again when the lease runs out.
    pub(crate) fn abandon(&self) {
        let mut state = self.state();
        if matches!(state.phase, Phase::Held | Phase::Uncertain) {
            self.stop.fire();
        }
        self.close(&mut state);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        if let Some(deadline_key) = state.deadline_key.take() {
            self.queue.renewer.forget(deadline_key);
        }
    }
}
