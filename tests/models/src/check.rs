//! The skeleton that all models share, and the runs of the checker.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Debug;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, PoisonError};

use stateright::{Checker, HasDiscoveries, Model, Property};

/// The maximum number of steps of a recovery.
const LONGEST_RECOVERY: usize = 400;

/// The states that are known to recover.
#[derive(Debug, Default)]
struct Recovered {
    hashes: RandomState,
    known: Mutex<HashSet<u64>>,
}

/// A protocol, as the state of its processes and storage, and the steps between states.
pub trait Protocol: Clone + Debug + Eq + Hash + Send + Sync + 'static {
    /// A step of a process, of the storage or of time.
    type Action: Copy + Debug + PartialEq;
    /// The protocol, or one of its broken variants.
    type Design: Copy + Debug + Send + Sync;
    /// The number of times that each fault may happen in one run.
    type Faults: Copy + Debug + Send + Sync;

    /// Returns the state in which a run begins.
    fn begin(faults: Self::Faults) -> Self;

    /// Adds the steps that can be next.
    fn next_actions(&self, design: Self::Design, actions: &mut Vec<Self::Action>);

    /// Takes a step. States that differ only in names or order become equal.
    fn step(&mut self, action: Self::Action, design: Self::Design);

    /// Returns the properties.
    fn properties() -> Vec<Property<Bounded<Self>>>;

    /// Returns whether a step happens in a run without further faults.
    fn is_fair(action: Self::Action) -> bool;

    /// Returns whether everything has ended as it should.
    fn has_ended(&self) -> bool;

    /// Returns the rank of a step among those of a run without further faults, the lowest first, or `None` if it is none of
    /// them or leads nowhere.
    fn rank(&self, model: &Bounded<Self>, action: Self::Action) -> Option<u8> {
        let leads_on = Self::is_fair(action) && model.next_state(self, action).is_some();
        leads_on.then_some(0)
    }
}

/// A protocol with a bounded number of faults.
#[derive(Debug)]
pub struct Bounded<P: Protocol> {
    /// The design to check.
    pub design: P::Design,
    /// The faults that may happen.
    pub faults: P::Faults,
    recovered: Recovered,
}

impl<P: Protocol> Bounded<P> {
    /// Returns the model of a design under these faults.
    pub fn new(design: P::Design, faults: P::Faults) -> Self {
        Self { design, faults, recovered: Recovered::default() }
    }

    /// Returns the next step of a run without further faults, or `None` if nothing is left to do.
    fn fair_action(&self, state: &P) -> Option<P::Action> {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        let ranked = actions.into_iter().filter_map(|action| Some((state.rank(self, action)?, action)));
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, action)| action)
    }

    /// Returns whether the model recovers from this state without further faults.
    ///
    /// As a property of every reachable state this is the liveness that stateright's `eventually` cannot check in a
    /// model with cycles: whatever has happened, a good end can be reached.
    pub fn recovers(&self, state: &P) -> bool {
        let Recovered { hashes, known } = &self.recovered;
        let mut state = state.clone();
        let mut passed = Vec::new();
        for _ in 0..LONGEST_RECOVERY {
            let hash = hashes.hash_one(&state);
            if known.lock().unwrap_or_else(PoisonError::into_inner).contains(&hash) {
                break;
            }
            passed.push(hash);
            let Some(action) = self.fair_action(&state) else {
                if state.has_ended() {
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

impl<P: Protocol> Model for Bounded<P> {
    type State = P;
    type Action = P::Action;

    fn init_states(&self) -> Vec<P> {
        vec![P::begin(self.faults)]
    }

    fn actions(&self, state: &P, actions: &mut Vec<P::Action>) {
        state.next_actions(self.design, actions);
    }

    fn next_state(&self, state: &P, action: P::Action) -> Option<P> {
        let mut next = state.clone();
        next.step(action, self.design);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        P::properties()
    }
}

/// Checks all reachable states and returns their number.
///
/// # Panics
/// If a property fails, or a `sometimes` property is never true.
pub fn assert_holds<P: Protocol>(model: Bounded<P>) -> usize {
    let checker = model.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    checker.unique_state_count()
}

/// Checks that a broken model violates `property`, and returns the shortest counterexample.
///
/// # Panics
/// If no reachable state violates the property.
pub fn assert_fails<P: Protocol>(model: Bounded<P>, property: &'static str) -> Vec<P::Action> {
    let wanted = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = model.checker().finish_when(wanted).spawn_bfs().join();
    checker.assert_any_discovery(property).into_actions()
}
