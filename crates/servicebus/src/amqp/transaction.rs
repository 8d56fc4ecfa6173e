//! Transactions that send a message and settle another one: both or neither.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use fe2o3_amqp::transaction::{
    Controller, ControllerSendError, Transaction, TransactionBase as _, TransactionDischarge as _,
};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::super::cache::Expiring as _;
use super::super::error::Fault;
use super::channel::{Channel, of_sender};
use super::links::{Links, LiveConnection};
use super::requests::{Node, NodeRequest};
use super::sender::SendLink;
use super::values::{Outbound, REQUEST_TIMEOUT, condition_of};
use jobqueue_storage::sync::lock;

/// A message that replaces another one, and the links for both.
struct Replacement {
    sender: SendLink,
    copy: Outbound,
    node: Node,
    settling: NodeRequest,
}

/// The concurrent transactions of a queue. Each has its own coordinator link, because such a link carries one
/// request at a time: transactions that share a link would wait for each other's answers.
const MAX_CONCURRENT_TRANSACTIONS: usize = 16;

impl Links {
    /// Sends a copy of a message, and makes the request that settles the original, in one transaction. A
    /// caller that stops waiting before its turn starts no transaction. Once begun, the transaction is
    /// finished even if the caller stops waiting, because an open one holds the original for minutes.
    ///
    /// # Errors
    /// After [`Fault::Lost`], [`Fault::Late`] and a refusal with an unknown condition, both may have been
    /// done; after any other fault, neither was.
    pub(crate) async fn replace(
        self: &Arc<Self>,
        queue: &str,
        copy: Outbound,
        settling: NodeRequest,
    ) -> Result<(), Fault> {
        let permit = self.transaction_permits.of(queue).acquire_owned().await.map_err(Fault::not_sent)?;
        let (links, queue) = (Arc::clone(self), queue.to_owned());
        let replacing = self.runtime().spawn(async move {
            let _permit = permit;
            links.transact(&queue, copy, settling).await
        });
        replacing.await.unwrap_or_else(|_| Err(Fault::lost("the runtime ends")))
    }

    async fn transact(
        self: &Arc<Self>,
        queue: &str,
        copy: Outbound,
        settling: NodeRequest,
    ) -> Result<(), Fault> {
        let attach = |live: Arc<LiveConnection>| async move {
            let (node, sender) = (live.node(queue).await?, live.sender(queue).await?);
            Ok((live.coordinator(queue).await?, node, sender, live))
        };
        let attached = self.attached(queue, attach).await;
        let (coordinator, node, sender, live) = attached.map_err(Fault::unsent)?;
        let replacement = Replacement { sender, copy, node, settling };
        let begun = match coordinator.declare().await {
            Ok(transaction) => Ok(coordinator.replace(transaction, replacement).await),
            // The service detaches idle links.
            Err(_) if coordinator.is_gone() && !live.is_gone() => Err(replacement),
            Err(fault) => Ok(Err(fault.unsent())),
        };
        let (coordinator, replaced) = match begun {
            Ok(replaced) => (coordinator, replaced),
            Err(replacement) => {
                // The other idle coordinators have been idle for even longer.
                live.coordinators.forget(queue);
                let another = live.coordinator(queue).await.map_err(Fault::unsent)?;
                let transaction = another.declare().await.map_err(Fault::unsent)?;
                let replaced = another.replace(transaction, replacement).await;
                (another, replaced)
            }
        };
        live.coordinators.keep(queue, coordinator);
        replaced
    }
}

impl LiveConnection {
    /// Returns a coordinator that no other transaction uses.
    async fn coordinator(self: &Arc<Self>, queue: &str) -> Result<Coordinator, Fault> {
        match self.coordinators.take(queue) {
            Some(coordinator) => Ok(coordinator),
            None => Coordinator::attach(self.channel(queue).await?).await,
        }
    }
}

/// Permits for transactions, by queue.
#[derive(Debug, Default)]
pub(super) struct TransactionPermits(Mutex<HashMap<String, Arc<Semaphore>>>);

impl TransactionPermits {
    fn of(&self, queue: &str) -> Arc<Semaphore> {
        let mut permits = lock(&self.0);
        let of_queue = permits.entry(queue.to_owned());
        Arc::clone(of_queue.or_insert_with(|| Arc::new(Semaphore::new(MAX_CONCURRENT_TRANSACTIONS))))
    }
}

/// The coordinator links without a transaction, by queue.
#[derive(Debug, Default)]
pub(super) struct Coordinators {
    free: Mutex<HashMap<String, Vec<Coordinator>>>,
}

impl Coordinators {
    /// Takes the coordinator that was used last.
    fn take(&self, queue: &str) -> Option<Coordinator> {
        let mut free = lock(&self.free);
        let of_queue = free.get_mut(queue)?;
        while let Some(coordinator) = of_queue.pop() {
            if !coordinator.is_gone() {
                return Some(coordinator);
            }
        }
        None
    }

    fn keep(&self, queue: &str, coordinator: Coordinator) {
        if !coordinator.is_gone() {
            lock(&self.free).entry(queue.to_owned()).or_default().push(coordinator);
        }
    }

    fn forget(&self, queue: &str) {
        lock(&self.free).remove(queue);
    }
}

/// A link to the transaction coordinator, for one transaction at a time.
#[derive(Debug)]
struct Coordinator {
    controller: Controller,
    channel: Arc<Channel>,
    /// Fires when a request was not answered, or a discharge was refused: the link cannot be used again.
    failed: CancellationToken,
}

impl Coordinator {
    async fn attach(channel: Arc<Channel>) -> Result<Self, Fault> {
        let attaching = channel.attach(REQUEST_TIMEOUT, |session, name| {
            Box::pin(
                async move { Controller::attach(session, name).await.map_err(|error| of_sender(&error)) },
            )
        });
        Ok(Self {
            controller: attaching.await.map_err(Fault::of_coordinator)?,
            channel,
            failed: CancellationToken::new(),
        })
    }

    fn is_gone(&self) -> bool {
        self.failed.is_cancelled() || self.channel.dead.is_cancelled()
    }

    async fn declare(&self) -> Result<Transaction<'_>, Fault> {
        let declared = self.answer(Transaction::declare(&self.controller, None)).await;
        let mut transaction = declared.map_err(Fault::of_coordinator)?;
        // A dropped transaction would block the thread until its rollback is answered.
        transaction.set_rollback_on_drop_trials(0);
        Ok(transaction)
    }

    /// Sends the copy and settles the original: both or neither.
    ///
    /// # Errors
    /// After [`Fault::Lost`], [`Fault::Late`] and a refusal with an unknown condition, both may have been
    /// done; after any other fault, neither was.
    async fn replace(
        &self,
        transaction: Transaction<'_>,
        Replacement { sender, copy, node, settling }: Replacement,
    ) -> Result<(), Fault> {
        let id = transaction.txn_id();
        let (sent, settled) =
            tokio::join!(sender.post(copy, Some(id.clone())), node.ask(settling, Some(id.clone())));
        // A commit would apply one without the other.
        if let Err(fault) = settled.and(sent) {
            let _ = self.discharge(transaction.rollback()).await;
            return Err(fault.unsent());
        }
        self.discharge(transaction.commit()).await.map_err(Fault::of_commit)
    }

    /// Ends a transaction. After a refusal, the client sends a rollback by itself. Its answer could be taken
    /// for the answer to the next request, so the link is not used again.
    async fn discharge(
        &self,
        request: impl Future<Output = Result<(), ControllerSendError>>,
    ) -> Result<(), Fault> {
        let discharged = self.answer(request).await;
        if discharged.is_err() {
            self.failed.cancel();
        }
        discharged
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
