//! The runs of the checker that the tests of all models share.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Debug;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, PoisonError};

use stateright::{Checker, HasDiscoveries, Model};

/// The maximum number of steps of a recovery.
const LONGEST_RECOVERY: usize = 400;

/// The states that are known to recover.
#[derive(Debug, Default)]
pub struct Recovered {
    hashes: RandomState,
    known: Mutex<HashSet<u64>>,
}

/// A model that can say how it continues without further faults.
pub trait Recovers: Model
where
    Self::State: Clone + Hash,
{
    /// Returns the next step of a run without further faults, or `None` if nothing is left to do.
    fn fair_action(&self, state: &Self::State) -> Option<Self::Action>;

    /// Returns whether everything has ended as it should.
    fn is_settled(&self, state: &Self::State) -> bool;

    /// Returns the memory of recovered states.
    fn recovered(&self) -> &Recovered;

    /// Returns whether the model recovers from this state without further faults.
    ///
    /// As a property of every reachable state this is the liveness that stateright's `eventually` cannot check in a
    /// model with cycles: whatever has happened, a good end can be reached.
    fn recovers(&self, state: &Self::State) -> bool {
        let Recovered { hashes, known } = self.recovered();
        let mut state = state.clone();
        let mut passed = Vec::new();
        for _ in 0..LONGEST_RECOVERY {
            let hash = hashes.hash_one(&state);
            if known.lock().unwrap_or_else(PoisonError::into_inner).contains(&hash) {
                break;
            }
            passed.push(hash);
            let Some(action) = self.fair_action(&state) else {
                if self.is_settled(&state) {
                    break;
                }
                return false;
            };
            let Some(next) = self.next_state(&state, action) else { return false };
            state = next;
        }
        if passed.len() >= LONGEST_RECOVERY {
            return false;
        }
        known.lock().unwrap_or_else(PoisonError::into_inner).extend(passed);
        true
    }
}

/// Checks all reachable states and returns their number.
///
/// # Panics
/// If a property fails, or a `sometimes` property is never true.
pub fn assert_holds<M>(model: M) -> usize
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let checker = model.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    checker.unique_state_count()
}

/// Checks that a broken model violates `property`, and returns the shortest counterexample.
///
/// # Panics
/// If no reachable state violates the property.
pub fn assert_fails<M>(model: M, property: &'static str) -> Vec<M::Action>
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let wanted = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = model.checker().finish_when(wanted).spawn_bfs().join();
    checker.assert_any_discovery(property).into_actions()
}
