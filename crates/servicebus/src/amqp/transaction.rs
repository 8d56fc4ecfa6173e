//! Replaces a delivery by another message, in one transaction.

use std::time::Duration;

use fe2o3_amqp::link::delivery::DeliveryInfo;
use fe2o3_amqp::transaction::{
    Controller, ControllerSendError, Transaction, TransactionDischarge as _, TransactionPosting as _,
    TransactionRetirement as _,
};
use fe2o3_amqp::types::messaging::{Data, Message, Outcome};
use fe2o3_amqp::{Receiver, Sender};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::super::error::Fault;
use super::settlement::Settled;

/// The time for the answer to a settlement in a transaction. A link that ends meanwhile has none.
const ANSWER: Duration = Duration::from_secs(5);

pub(super) struct TransactionLinks<'l> {
    pub(super) controller: &'l Controller,
    pub(super) sender: &'l mut Sender,
    pub(super) receiver: &'l mut Receiver,
}

/// Sends `copy` and completes the delivery: both or neither. `answered` receives the answer to the settlement.
///
/// # Errors
/// [`Fault::NotSent`] and [`Fault::Refused`] if neither was done; the others leave it open.
pub(super) async fn replace(
    links: TransactionLinks<'_>,
    delivery: DeliveryInfo,
    copy: Message<Data>,
    answered: oneshot::Receiver<Settled>,
) -> Result<(), Fault> {
    let TransactionLinks { controller, sender, receiver } = links;
    let not_sent = |error: &dyn std::fmt::Display| Fault::NotSent(error.to_string());
    let transaction = Transaction::declare(controller, None).await.map_err(|error| not_sent(&error))?;
    match transaction.post(sender, copy).await {
        Ok(Outcome::Accepted(_)) => {}
        Ok(_) => return Err(Fault::NotSent("the copy was not accepted".to_owned())),
        Err(error) => return Err(not_sent(&error)),
    }
    transaction.accept(receiver, delivery).await.map_err(|error| not_sent(&error))?;
    // The service may have refused, and a commit would send the copy all the same.
    let answer = match timeout(ANSWER, answered).await {
        Ok(Ok(Some(settled))) => settled,
        _ => Err(Fault::NotSent("a settlement in a transaction got no answer".to_owned())),
    };
    if let Err(fault) = answer {
        let _ = transaction.rollback().await;
        return Err(fault);
    }
    match transaction.commit().await {
        Ok(()) => Ok(()),
        // Rolled back: a lost lock, among other reasons. The next try learns which.
        Err(ControllerSendError::Rejected(_)) => {
            Err(Fault::NotSent("the transaction was rolled back".to_owned()))
        }
        Err(error) => Err(Fault::Lost(error.to_string())),
    }
}
