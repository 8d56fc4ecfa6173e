//! Replaces a delivery by another message, in one transaction.

use fe2o3_amqp::link::delivery::DeliveryInfo;
use fe2o3_amqp::transaction::{
    Controller, ControllerSendError, Transaction, TransactionDischarge as _, TransactionPosting as _,
    TransactionRetirement as _,
};
use fe2o3_amqp::types::messaging::{Data, Message, Outcome};
use fe2o3_amqp::{Receiver, Sender};

use super::super::error::Fault;

/// Sends `copy` and completes the delivery: both or neither.
///
/// # Errors
/// [`Fault::NotSent`] and [`Fault::Refused`] if neither was done; the others leave it open.
pub(super) async fn replace(
    controller: &Controller,
    sender: &mut Sender,
    receiver: &mut Receiver,
    delivery: DeliveryInfo,
    copy: Message<Data>,
) -> Result<(), Fault> {
    let not_sent = |error: &dyn std::fmt::Display| Fault::NotSent(error.to_string());
    let transaction = Transaction::declare(controller, None).await.map_err(|error| not_sent(&error))?;
    match transaction.post(sender, copy).await {
        Ok(Outcome::Accepted(_)) => {}
        Ok(_) => return Err(Fault::NotSent("the copy was not accepted".to_owned())),
        Err(error) => return Err(not_sent(&error)),
    }
    transaction.accept(receiver, delivery).await.map_err(|error| not_sent(&error))?;
    match transaction.commit().await {
        Ok(()) => Ok(()),
        // Rolled back: a lost lock, among other reasons. The next try learns which.
        Err(ControllerSendError::Rejected(_)) => {
            Err(Fault::NotSent("the transaction was rolled back".to_owned()))
        }
        Err(error) => Err(Fault::Lost(error.to_string())),
    }
}
