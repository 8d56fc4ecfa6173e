//! Gets and gives back messages in a queue that requires sessions.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, timeout};

use super::super::amqp::settlement::Settlement;
use super::super::deliveries::Begun;
use super::super::error::Fault;
use super::super::held::Held;
use super::super::place::Place;
use super::super::session::{Claimed, GetResult, Pool, Session, Unclaimed};
use super::ServiceBusQueues;
use super::get::{BLOBS_PAUSE, of_lock};
use super::message::{Content, digest};
use super::put::before;
use super::receipt::Receipt;
use super::update::Lock;
use jobqueue_storage::QueueName;
use jobqueue_storage::sync::lock;
use jobqueue_storage::{GetMessages, LeasedMessage, MessageRef, Operation, Received, StoreError};

/// The time that a renewal waits for the connection that holds the session.
const HOLDER_PATIENCE: Duration = Duration::from_secs(2);
const MAX_ID: usize = 128;

/// Returns the id of the session for a group, or of the message for a job: its name, or the hash of one that is too long.
pub(super) fn id_for(name: &str) -> String {
    if name.chars().count() <= MAX_ID {
        return name.to_owned();
    }
    format!("sha256:{}", digest(name))
}

pub(super) async fn get(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    options: GetMessages,
) -> Result<Received, StoreError> {
    let requested = Instant::now();
    let GetResult { claimed, confirmed_empty } =
        queues.pool(queue).get(options.count).await.map_err(|fault| {
            if fault.is_not_allowed() || fault.is_missing_entity() {
                queues.forget_sessions(queue);
            }
            fault.of_change(Operation::Get.as_str(), queue)
        })?;
    let waited = requested.elapsed();
    // Those that are not returned, because the future is dropped, are released.
    let mut leases = Vec::with_capacity(claimed.len());
    for claimed in claimed {
        leases.extend(leased(queues, queue, claimed, waited, options.visibility).await);
    }
    let keep = |(message, unclaimed): (LeasedMessage, Unclaimed)| {
        unclaimed.keep();
        message
    };
    let messages: Vec<_> = leases.into_iter().map(keep).collect();
    let is_uncertain = messages.is_empty() && !confirmed_empty;
    Ok(Received::new(messages).with_uncertainty(is_uncertain))
}

/// Returns a message with its receipt, and remembers it. A message whose delay is not over, and one whose saved text cannot be read,
/// is left out.
async fn leased(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    claimed: Claimed,
    waited: Duration,
    asked: Duration,
) -> Option<(LeasedMessage, Unclaimed)> {
    let Claimed { taken, session, unclaimed } = claimed;
    let (token, content) = (taken.lock, Content::read(taken.message));
    let mut held = Held::of(queue, &content, session.locked_until());
    held.session = Some(Arc::clone(&session));
    match queues.beside.begin_delivery(&mut held).await {
        Ok(Begun::Now) => {}
        Ok(Begun::NotBefore(at)) => {
            if session.give_back_at(token, at).is_ok() {
                unclaimed.keep();
            }
            return None;
        }
        Err(error) => {
            tracing::warn!(%queue, message = %held.id, %error, "the delivery of a message cannot be counted");
            // The service counts no delivery that ends with its session, and until then nobody asks the blobs again.
            if session.postpone(queues.links.now() + BLOBS_PAUSE).is_ok() {
                unclaimed.keep();
            }
            return None;
        }
    }
    let locked_until = session.locked_until();
    let left = of_lock(queue, session.left());
    let message = MessageRef { id: held.id.clone(), receipt: Receipt::Lock(token).write(token) };
    let text = (*held.text).clone();
    let lease = LeasedMessage::new(message, text, held.dequeue_count, held.inserted, locked_until)
        .with_expires(held.expires)
        .with_granted((left + waited < asked).then_some(left + waited));
    queues.held.insert(token, held);
    Some((lease, unclaimed))
}

impl ServiceBusQueues {
    fn pool(&self, queue: &QueueName) -> Arc<Pool> {
        let mut pools = lock(&self.pools);
        if let Some(pool) = pools.get(queue).filter(|pool| !pool.is_gone()) {
            return Arc::clone(pool);
        }
        let address = Place::of(queue).address();
        let pool = Pool::new(&address, &self.links, self.wait, self.links.arrivals(&address));
        let pool = Arc::new(pool);
        pools.insert(queue.clone(), Arc::clone(&pool));
        pool
    }
}

impl Lock<'_> {
    /// Renews the lock of the session where it is held, as all clients of the service do. A program whose threads are all busy does not
    /// answer there, and a connection may take no further links: then by the connection of this handle.
    pub(super) async fn renew_session(
        &self,
        session: &Session,
        operation: &'static str,
    ) -> Result<SystemTime, StoreError> {
        let failed = |fault: Fault| self.failed(fault, operation);
        match timeout(HOLDER_PATIENCE, session.renew()).await {
            Ok(Err(Fault::NotSent(_))) | Err(_) => {}
            Ok(renewed) => return renewed.map_err(failed),
        }
        let node = self.queues.node(self.queue).await.map_err(before(failed))?;
        session.renew_by(&node).await.map_err(failed)
    }

    /// Gives the message back, so that it stays the first of its session: at once, or at a time.
    pub(super) async fn give_back_in_session(
        &self,
        session: &Session,
        text: Option<&str>,
        visible: Option<SystemTime>,
    ) -> Result<(), StoreError> {
        if text.is_some() || visible.is_some() {
            // Says whether the session is still ours: any later receiver reads this text.
            self.renew_session(session, super::update::UPDATE).await?;
            let present = || self.held.text.as_ref().as_ref().ok().map(String::as_str);
            if let Some(text) = text.or_else(present) {
                self.queues.beside.save_given_back(&self.held, text, visible).await?;
            }
        }
        let given_back = match visible {
            Some(at) => session.give_back_at(self.token, at),
            None => session.settle(self.token, Settlement::Abandon).await,
        };
        given_back.map_err(|fault| self.failed(fault, super::update::UPDATE))?;
        self.queues.held.change(self.token, |held| held.is_given_back = true);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_groups_have_short_sessions() {
        assert_eq!(id_for("customer-7"), "customer-7");
        let (one, two) = (id_for(&"k".repeat(129)), id_for(&"k".repeat(130)));
        assert!(one.len() <= MAX_ID && one != two, "{one} {two}");
    }
}
