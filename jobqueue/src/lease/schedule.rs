//! The next deadline of a lease: when it is renewed, when its job is cut off, and when it counts as lost.

use std::time::Duration;

use tokio::time::Instant;

use super::owner::{Lease, Loss, Phase, ReceiptState};

/// The time before a message's expiry at which it becomes visible at the latest.
const EXPIRY_MARGIN: Duration = Duration::from_secs(1);

impl Lease {
    /// Returns the time at which the lease counts as lost unless it is renewed.
    pub(super) fn give_up_at(&self, state: &ReceiptState) -> Instant {
        state.deadline - margin(state)
    }

    /// Inserts the lease's next deadline into the deadline queue.
    pub(super) fn schedule(&self, state: &mut ReceiptState) {
        self.unschedule(state);
        let (now, give_up) = (Instant::now(), self.give_up_at(state));
        let at = match state.phase {
            Phase::Held if !self.is_renewed(state, now) => give_up.min(Self::next_run_cutoff(state)),
            Phase::Held => {
                let left = state.deadline.saturating_duration_since(now);
                // 65 to 72 % of the remaining time, spread so that leases of one request are not renewed
                // together.
                let part = self.queue.renewer.runtime().jitter(left, 0.65..=0.72);
                (now + part).min(give_up).min(Self::next_run_cutoff(state))
            }
            Phase::Uncertain => give_up,
            Phase::Lost(_) | Phase::Closed => return,
        };
        state.deadline_key = Some(self.queue.renewer.watch(at, self.this.clone()));
    }

    /// Returns whether the lease is to be renewed: there is time, and the lease does not yet last until the
    /// message expires.
    fn is_renewed(&self, state: &ReceiptState, now: Instant) -> bool {
        !self.lasts_until_expiry(state) && now < state.renewed_until
    }

    /// Returns whether the lease lasts until its message expires, after which no worker can run the job.
    pub(super) fn lasts_until_expiry(&self, state: &ReceiptState) -> bool {
        self.expires.is_some_and(|expires| state.deadline + EXPIRY_MARGIN >= expires)
    }

    /// Returns whether the message expires before a handler could do anything. A message that was put back
    /// for longer than it lives is visible for a moment before it expires.
    pub(super) fn is_about_to_expire(&self) -> bool {
        self.left_to_live().is_some_and(|left| left <= EXPIRY_MARGIN)
    }

    /// Returns when to cut off the job, unless that has happened.
    fn next_run_cutoff(state: &ReceiptState) -> Instant {
        if state.overrun { state.deadline } else { state.run_until }
    }

    /// Returns the part of `visibility` for which the message can be hidden before it expires.
    pub(crate) fn within_life(&self, visibility: Duration) -> Duration {
        let Some(expires) = self.expires else { return visibility };
        let left = expires.saturating_duration_since(Instant::now());
        // Storages count in seconds; the margin absorbs their rounding.
        visibility.min(left.saturating_sub(EXPIRY_MARGIN))
    }

    pub(super) fn unschedule(&self, state: &mut ReceiptState) {
        if let Some(deadline_key) = state.deadline_key.take() {
            self.queue.renewer.forget(deadline_key);
        }
    }

    /// Handles a due entry of the deadline queue. Returns true if a renewal must be sent; the time to give up
    /// is then already in the queue.
    pub(super) fn is_renewal_due(&self) -> bool {
        let mut state = self.state();
        state.deadline_key = None;
        let now = Instant::now();
        let give_up = self.give_up_at(&state);
        match state.phase {
            Phase::Lost(_) | Phase::Closed => false,
            Phase::Held | Phase::Uncertain if now >= give_up => {
                self.lose(state, Loss::Expired);
                false
            }
            phase => {
                state.deadline_key = Some(self.queue.renewer.watch(give_up, self.this.clone()));
                if now >= state.run_until {
                    // Cut off while this process still owns the message, so that the failed attempt can be
                    // counted.
                    state.overrun = true;
                    self.stop.fire();
                }
                phase == Phase::Held && self.is_renewed(&state, now)
            }
        }
    }
}

/// Returns how long before the deadline the token fires, so that the handler stops before a successor can
/// start.
pub(super) fn margin(state: &ReceiptState) -> Duration {
    (state.length / 20).clamp(Duration::from_millis(5), Duration::from_secs(1)).min(state.length / 2)
}
