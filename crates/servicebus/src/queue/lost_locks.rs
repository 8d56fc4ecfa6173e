//! Finds out which locks were lost together with their link.
//!
//! The documentation of the service says that a broken connection drops the locks of the messages that came by it; seen was that they stay, too.
//! So the locks are renewed as soon as a link has ended: another receiver may have a message whose lock is lost, and its handler is to stop.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::sleep;

use super::super::amqp::Links;
use super::super::amqp::receiver::ReceiveLink;
use super::super::held::HeldMessages;
use super::super::place::Place;
use super::{ServiceBusQueues, manage};
use jobqueue_storage::QueueName;

/// The pause before locks are renewed again whose renewal was not answered.
const RETRY: Duration = Duration::from_secs(1);

pub(super) fn watch(queues: &ServiceBusQueues, queue: &QueueName, link: &ReceiveLink) {
    let address = Place::of(queue).address().into_owned();
    // A storage that is dropped ends its links, and holds no locks.
    let (links, held) = (Arc::downgrade(&queues.links), Arc::downgrade(&queues.held));
    let link = link.clone();
    drop(queues.links.runtime().spawn(async move {
        link.ended().await;
        while renew_all(&links, &held, &link, &address).await {
            sleep(RETRY).await;
        }
    }));
}

/// Renews the locks; returns whether some renewals were not answered.
async fn renew_all(
    links: &Weak<Links>,
    held: &Weak<HeldMessages>,
    link: &ReceiveLink,
    address: &str,
) -> bool {
    let (Some(links), Some(all)) = (links.upgrade(), held.upgrade()) else { return false };
    let mut is_open = false;
    for (token, held) in all.of(link) {
        if held.locked_until <= links.now() {
            continue;
        }
        let renewed = match links.node(address).await {
            Ok(node) => manage::renew(&node, token).await,
            Err(fault) => Err(fault),
        };
        match renewed {
            Ok(until) => all.change(token, |held| (held.locked_until, held.link) = (until, None)),
            Err(fault) if fault.is_lock_lost() => {
                tracing::warn!(queue = %held.queue, message = %held.id, "the lock of a message was lost with its link");
                held.lost.cancel();
                all.change(token, |held| held.link = None);
            }
            Err(_) => is_open = true,
        }
    }
    is_open
}
