//! Runs of the checker.

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model as _};

use crate::model::{Faults, Model, Scenario};

/// Checks all states that a scenario reaches under these faults.
///
/// # Panics
/// If a property fails, or no run ends as it should.
pub fn assert_holds(scenario: Scenario, faults: Faults) {
    let checker = Model::new(scenario, faults).checker().finish_when(HasDiscoveries::AnyFailures);
    checker.spawn_bfs().join().assert_properties();
}

/// Checks that `property` fails in a model with a planted defect.
///
/// # Panics
/// If no reachable state violates the property.
pub fn assert_fails(model: Model, property: &'static str) {
    let wanted = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    model.checker().finish_when(wanted).spawn_bfs().join().assert_any_discovery(property);
}
