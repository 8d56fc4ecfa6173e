//! Settlements of deliveries, as AMQP outcomes.

use std::sync::Arc;

use fe2o3_amqp::types::definitions::{Error as AmqpError, ErrorCondition, Fields};
use fe2o3_amqp::types::messaging::{DeliveryState, Modified, Outcome};
use fe2o3_amqp::types::primitives::{Symbol, Value};
use fe2o3_amqp::types::transaction::TransactionalState;

use tokio::sync::oneshot;

use super::super::error::Fault;
use super::values::condition_of;

/// Receives the answer to a settlement. If the sender is dropped, it is unknown whether the settlement was
/// applied.
pub(super) type SettlementAnswer = oneshot::Receiver<Result<(), Fault>>;

/// Passes on the receiver of the answer when the settlement is sent. Dropping it means that none was sent.
pub(super) type SettlementSent = oneshot::Sender<SettlementAnswer>;

#[derive(Debug, Clone)]
pub(crate) enum Settlement {
    Complete,
    Abandon,
    /// Like `Abandon`, but the service counts no delivery.
    Release,
    DeadLetter(Arc<DeadLetterOutcome>),
}

/// The reason for which a message is dead-lettered, and the properties that the service sets on it.
#[derive(Debug)]
pub(crate) struct DeadLetterOutcome {
    pub(crate) reason: String,
    pub(crate) description: String,
    pub(crate) properties: Vec<(&'static str, String)>,
}

impl DeadLetterOutcome {
    /// Returns the outcome in the service's form: a rejection with a condition of the service.
    pub(super) fn rejection(&self) -> AmqpError {
        let mut info = Fields::new();
        let known = [("DeadLetterReason", &self.reason), ("DeadLetterErrorDescription", &self.description)];
        let known = known.into_iter().filter(|(_, value)| !value.is_empty());
        for (name, value) in known.chain(self.properties.iter().map(|(name, value)| (*name, value))) {
            info.insert(Symbol::from(name), Value::String(value.clone()));
        }
        AmqpError {
            condition: ErrorCondition::Custom(Symbol::from("com.microsoft:dead-letter")),
            description: None,
            info: Some(Box::new(info)),
        }
    }
}

pub(super) fn abandoned() -> Modified {
    Modified { delivery_failed: None, undeliverable_here: Some(false), message_annotations: None }
}

/// Reads the answer to a settlement. A rejection with an error means that the settlement was not applied.
pub(super) fn settled(state: &DeliveryState) -> Result<(), Fault> {
    let rejected = match state {
        DeliveryState::Rejected(rejected) => rejected,
        DeliveryState::TransactionalState(TransactionalState {
            outcome: Some(Outcome::Rejected(rejected)),
            ..
        }) => rejected,
        _ => return Ok(()),
    };
    rejected.error.as_ref().map_or(Ok(()), |error| Err(condition_of(error).of_settlement()))
}
