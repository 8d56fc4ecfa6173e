//! Gets messages, and gives them back, in a queue that requires sessions.

use std::sync::Arc;
use std::time::SystemTime;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::super::deliveries::DeliveryStart;
use super::super::error::Fault;
use super::super::held::HeldMessage;
use super::super::place::Place;
use super::super::session::{ClaimedMessage, GetResult, Pool, Session, SessionReleaseGuard};
use super::ServiceBusQueues;
use super::get::{BLOB_RETRY_PAUSE, GrantedMessage, lock_left, within_third_of_lock};
use super::letter::digest;
use super::message::Content;
use super::receipt::Receipt;
use super::update::{Lock, UPDATE};
use jobqueue_storage::sync::lock;
use jobqueue_storage::{LeasedMessage, MessageRef, Operation, QueueName, Received, StoreError, log};

/// The service's limit for an id, in UTF-16 code units.
const MAX_ID_UNITS: usize = 128;

/// Returns the session id for a group, or the message id for a job: the name itself, or its hash if the name
/// is too long.
pub(super) fn id_for(name: &str) -> String {
    if name.encode_utf16().count() <= MAX_ID_UNITS {
        return name.to_owned();
    }
    format!("sha256:{}", digest(name))
}

pub(super) async fn get(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    count: u32,
    requested: Instant,
) -> Result<Received, StoreError> {
    let is_keeping_back = queues.is_keeping_back(queue);
    let GetResult { claimed, confirmed_empty } =
        queues.pool(queue).get(count, queues.lock_length(queue)).await.map_err(|fault| {
            if fault.is_not_allowed() || fault.is_missing_entity() {
                queues.forget_sessions(queue);
            }
            fault.of_change(Operation::Get.as_str(), queue)
        })?;
    // If this future is dropped, the guards release the messages.
    let leases = claimed.into_iter().map(|claimed| leased(queues, queue, claimed, requested));
    let leases = join_all(leases).await.into_iter().flatten();
    let messages: Vec<_> =
        leases.map(|granted| granted.hand_out(queues, SessionReleaseGuard::keep)).collect();
    let is_uncertain = messages.is_empty() && (!confirmed_empty || is_keeping_back);
    Ok(Received::new(messages).with_uncertainty(is_uncertain))
}

/// Returns a message with its receipt; `None` for a message whose delay is not over, or whose saved text
/// cannot be read.
async fn leased(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    claimed: ClaimedMessage,
    requested: Instant,
) -> Option<GrantedMessage<SessionReleaseGuard>> {
    let ClaimedMessage { lock: token, message, session, guard } = claimed;
    let content = Content::read(message);
    let mut held = HeldMessage::of(queue, &content, session.locked_until());
    held.session = Some(Arc::clone(&session));
    let left = lock_left(queues, queue, session.left());
    let beginning = queues.queue_blobs.begin_delivery(&mut held, queues.links.clock.now());
    match within_third_of_lock(left, queue, beginning).await {
        Ok(DeliveryStart::Now) => {}
        Ok(DeliveryStart::NotBefore(at)) => {
            if session.give_back(Some(at)).is_ok() {
                guard.keep();
            }
            return None;
        }
        Err(error) => {
            log::warn!(%queue, message = %held.id, %error, "the delivery of a message cannot be counted");
            // The blob is not read again before the pause is over.
            session.keep_back(queues.facts(queue, |facts| Arc::clone(&facts.kept_back)));
            if session.give_back(Some(queues.links.clock.now() + BLOB_RETRY_PAUSE)).is_ok() {
                guard.keep();
            }
            return None;
        }
    }
    let locked_until = session.locked_until();
    let waited = requested.elapsed();
    let left = session.left().min(queues.lock_length(queue));
    let message = MessageRef { id: held.id.clone(), receipt: Receipt::Lock(token).write(token) };
    let text = (*held.text).clone();
    let lease = LeasedMessage::new(message, text, held.dequeue_count, held.inserted, locked_until)
        .with_expires(held.expires)
        .with_granted(Some(waited + left));
    Some(GrantedMessage { message: lease, lock: token, held, guard })
}

impl ServiceBusQueues {
    fn pool(&self, queue: &QueueName) -> Arc<Pool> {
        let mut pools = lock(&self.pools);
        if let Some(pool) = pools.get(queue).filter(|pool| !pool.is_gone()) {
            return Arc::clone(pool);
        }
        let address = Place::of(queue).address();
        let pool = Arc::new(Pool::new(&address, &self.links));
        pools.insert(queue.clone(), Arc::clone(&pool));
        pool
    }
}

impl Lock<'_> {
    /// Gives the message back at once, or at `visible`. It stays the first of its session.
    pub(super) async fn give_back_in_session(
        &self,
        session: &Arc<Session>,
        text: Option<&str>,
        visible: Option<SystemTime>,
    ) -> Result<(), StoreError> {
        let failed = |fault: Fault| self.failed(fault, UPDATE);
        let is_stored = text.is_some() || visible.is_some();
        if is_stored {
            // The renewal shows that this process still holds the session: any later receiver reads this
            // text.
            session.renew(&self.queues.links).await.map_err(failed)?;
            self.queues.queue_blobs.save_given_back(&self.held, text, visible).await?;
        }
        let given_back = session.give_back(visible).map_err(failed);
        given_back.map_err(|error| if is_stored { self.in_doubt(error) } else { error })?;
        self.queues.held.change(self.token, |held| {
            held.is_given_back = true;
            held.shed_content();
        });
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
        assert!(one.len() <= MAX_ID_UNITS && one != two, "{one} {two}");
    }

    #[test]
    fn groups_are_as_long_as_the_service_counts_them() {
        let (fits, is_longer) = ("🦀".repeat(64), "🦀".repeat(65));
        assert_eq!(id_for(&fits), fits);
        assert!(id_for(&is_longer).starts_with("sha256:"));
    }
}
