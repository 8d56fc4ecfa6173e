//! The continuation of a run without further faults.

use std::hash::BuildHasher;
use std::sync::PoisonError;

use super::{Action, Faults, Model, State};

/// The maximum number of steps of a recovery.
const LONGEST_RECOVERY: usize = 2_000;

impl Model {
    /// Returns whether the model recovers from this state without further faults.
    ///
    /// As a property of every reachable state, this is a liveness property: whatever has happened, a good end
    /// can be reached. Stateright's `eventually` cannot check it in a model with cycles.
    pub fn recovers(&self, state: &State) -> bool {
        let mut state = State { faults: Faults::default(), ..state.clone() };
        let mut passed = Vec::new();
        for _ in 0..LONGEST_RECOVERY {
            let hash = self.hashes.hash_one(&state);
            let known = self.recovers.lock().unwrap_or_else(PoisonError::into_inner).contains(&hash);
            if known || (self.scenario.has_ended)(&state) {
                self.recovers.lock().unwrap_or_else(PoisonError::into_inner).extend(passed);
                return true;
            }
            passed.push(hash);
            let Some(action) = self.fair_action(&state) else { return false };
            if self.waits(&state, action) {
                state.store.minute += 1;
            }
            self.apply(&mut state, action);
        }
        false
    }

    /// Returns the next step of a run without further faults, or `None` if nothing is left to do.
    fn fair_action(&self, state: &State) -> Option<Action> {
        if !state.in_flight.is_empty() {
            return Some(Action::Arrive);
        }
        if !state.processes.is_empty() {
            return Some(Action::Answer(0));
        }
        let lost = state.store.messages.iter().find(|message| message.lease.is_some());
        if let Some(message) = lost {
            return Some(Action::EndLease(message.receipt.id));
        }
        let mut starts = Vec::new();
        self.starts(state, true, &mut starts);
        // Programs are listed in the order in which they help. Among messages, the one with the fewest
        // deliveries comes first.
        starts.into_iter().min_by_key(|action| match action {
            Action::Start(program, None) => (*program, 0),
            Action::Start(program, Some(id)) => (*program, deliveries(state, *id)),
            _ => (usize::MAX, 0),
        })
    }

    /// Returns whether time passes before this step, which is the case before the delivery of a message that
    /// has been delivered often.
    fn waits(&self, state: &State, action: Action) -> bool {
        matches!(action, Action::Start(_, Some(id)) if deliveries(state, id) >= self.scenario.deliveries)
    }
}

fn deliveries(state: &State, id: u16) -> u16 {
    let message = state.store.messages.iter().find(|message| message.receipt.id == id);
    message.map_or(0, |message| message.deliveries)
}
