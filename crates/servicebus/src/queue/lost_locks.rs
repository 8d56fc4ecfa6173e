//! Keeps the links of leased messages alive, and detects locks that were lost together with their link.
//!
//! The service detaches a link that has been idle for ten minutes; a request on behalf of the link counts as
//! use.
//!
//! The documentation of the service says that a broken connection drops the locks of the messages that were
//! received over it; in practice, they sometimes survive. All locks are therefore renewed as soon as a link
//! has ended. If a lock is lost, another receiver may have the message, and its handler here must stop.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::super::amqp::Links;
use super::super::amqp::receiver::ReceiveLink;
use super::super::held::{HeldMessage, HeldMessages};
use super::super::place::Place;
use super::{ServiceBusQueues, manage};
use jobqueue_storage::QueueName;
use jobqueue_storage::log;

/// The interval between requests on behalf of a link. The service allows ten idle minutes.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(240);
/// The pause before unanswered renewals are repeated.
const RENEWAL_RETRY_PAUSE: Duration = Duration::from_secs(1);

pub(super) fn watch(queues: &ServiceBusQueues, queue: &QueueName, link: &ReceiveLink) {
    let address = Place::of(queue).address().into_owned();
    // Weak references, because a storage that is dropped ends its links and holds no locks.
    let (links, held) = (Arc::downgrade(&queues.links), Arc::downgrade(&queues.held));
    let link = link.clone();
    drop(queues.links.runtime().spawn(async move {
        while timeout(KEEP_ALIVE_INTERVAL, link.ended()).await.is_err() {
            tokio::select! {
                biased;
                () = link.ended() => {}
                () = show_use(&held, &link, &address) => {}
            }
        }
        while renew_all(&links, &held, &link, &address).await {
            sleep(RENEWAL_RETRY_PAUSE).await;
        }
    }));
}

/// Makes a request on behalf of a link if a message that was received over it is still held. The result is
/// ignored: if the link has ended, the locks are renewed.
async fn show_use(held: &Weak<HeldMessages>, link: &ReceiveLink, address: &str) {
    let in_hand =
        held.upgrade().and_then(|all| all.of(link).into_iter().find_map(|(_, held)| held.link.clone()));
    let Some(open) = in_hand else { return };
    if let Ok(node) = open.node(address).await {
        drop(manage::keep_link_alive(&node, link).await);
    }
}

/// Renews the locks concurrently, because other receivers may already have the messages. Returns whether a
/// renewal was not answered.
async fn renew_all(
    links: &Weak<Links>,
    held: &Weak<HeldMessages>,
    link: &ReceiveLink,
    address: &str,
) -> bool {
    let (Some(links), Some(all)) = (links.upgrade(), held.upgrade()) else { return false };
    let renewals = all.of(link).into_iter().map(|(token, held)| renew(&links, &all, address, token, held));
    join_all(renewals).await.contains(&false)
}

/// Renews a lock; returns whether the service answered.
async fn renew(
    links: &Arc<Links>,
    all: &HeldMessages,
    address: &str,
    token: Uuid,
    held: Arc<HeldMessage>,
) -> bool {
    let renewed = match links.node(address).await {
        Ok(node) => manage::renew(&node, token).await,
        Err(fault) => Err(fault),
    };
    match renewed {
        Ok(until) => all.change(token, |held| (held.locked_until, held.link) = (until, None)),
        Err(fault) if fault.is_lock_lost() || fault.is_missing_entity() => {
            log::warn!(queue = %held.queue, message = %held.id, "the lock of a message was lost with its link");
            held.lost.cancel();
            all.change(token, |held| held.link = None);
        }
        Err(_) => return false,
    }
    true
}
