//! Transactions: a message is sent, and another one settled, both or neither.

use std::sync::Arc;

use fe2o3_amqp::transaction::{
    Controller, ControllerSendError, Transaction, TransactionBase as _, TransactionDischarge as _,
};
use fe2o3_amqp::types::messaging::{Data, Message};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::super::error::Fault;
use super::cache::Perishable;
use super::channel::{Channel, of_sender};
use super::requests::{Node, Request};
use super::sender::SendLink;
use super::values::{REQUEST_TIMEOUT, condition_of};

/// A message that takes the place of another one, and the links for both.
pub(super) struct Replacement {
    pub(super) sender: SendLink,
    pub(super) copy: Message<Data>,
    pub(super) node: Node,
    pub(super) settling: Request,
}

/// The link to the coordinator of transactions. Clones use the same link.
#[derive(Debug, Clone)]
pub(super) struct Coordinator {
    controller: Arc<Controller>,
    channel: Arc<Channel>,
    /// Fires when a request got no answer: the link is of no more use.
    failed: CancellationToken,
}

impl Coordinator {
    pub(super) async fn attach(channel: Arc<Channel>) -> Result<Self, Fault> {
        let attaching = channel.attach(REQUEST_TIMEOUT, |session, name| {
            Box::pin(
                async move { Controller::attach(session, name).await.map_err(|error| of_sender(&error)) },
            )
        });
        let controller = Arc::new(attaching.await?);
        Ok(Self { controller, channel, failed: CancellationToken::new() })
    }

    pub(super) async fn declare(&self) -> Result<Transaction<'_>, Fault> {
        let mut transaction = self.answer(Transaction::declare(&self.controller, None)).await?;
        // A transaction that is dropped would wait for the answer to its rollback, and block the thread.
        transaction.set_rollback_on_drop_trials(0);
        Ok(transaction)
    }

    /// Sends the copy and settles the original, both or neither.
    ///
    /// # Errors
    /// [`Fault::Lost`] and [`Fault::Late`] leave open whether both were done; after all others neither was.
    pub(super) async fn replace(
        &self,
        transaction: Transaction<'_>,
        Replacement { sender, copy, node, settling }: Replacement,
    ) -> Result<(), Fault> {
        let id = transaction.txn_id();
        let (sent, settled) =
            tokio::join!(sender.post(copy, Some(id.clone())), node.ask(settling, Some(id.clone())));
        // A commit would do one without the other.
        if let Err(fault) = settled.and(sent) {
            let _ = self.answer(transaction.rollback()).await;
            return Err(fault.unsent());
        }
        self.answer(transaction.commit()).await.map_err(|fault| match fault {
            // Rolled back: a lost lock, among other reasons. The next try finds out which.
            Fault::Refused { .. } => Fault::not_sent(fault),
            other => other,
        })
    }

    async fn answer<T>(
        &self,
        request: impl Future<Output = Result<T, ControllerSendError>>,
    ) -> Result<T, Fault> {
        let fault = tokio::select! {
            biased;
            () = self.channel.dead.cancelled() => Fault::lost("the connection has ended"),
            answer = timeout(REQUEST_TIMEOUT, request) => match answer {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(ControllerSendError::Rejected(rejected))) => {
                    let refused = rejected.error.as_ref().map(condition_of);
                    return Err(refused.unwrap_or_else(|| Fault::not_sent("rejected without a reason")));
                }
                Ok(Err(error)) => Fault::lost(error),
                Err(_) => Fault::Late,
            },
        };
        self.failed.cancel();
        Err(fault)
    }
}

impl Perishable for Coordinator {
    fn is_gone(&self) -> bool {
        self.failed.is_cancelled() || self.channel.dead.is_cancelled()
    }
}
