//! One round of fetching: several requests at once if there are many free slots.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use crate::queue_core::QueueCore;
use crate::settings::QueueSettings;
use crate::storage::{LeasedMessage, MAX_MESSAGES, StoreError};

pub(super) const MAX_REQUESTS: u32 = 8;

#[derive(Debug)]
pub(super) struct Fetched {
    /// The messages, each with the time before its request was sent.
    pub(super) messages: Vec<(LeasedMessage, Instant)>,
    /// The time until the next message becomes visible, if the storage knows it.
    pub(super) next_visible_in: Option<Duration>,
    /// True if messages may be visible that did not come.
    pub(super) is_uncertain: bool,
    /// True if a part of the queue was not asked, or did not answer.
    pub(super) is_partial: bool,
}

/// Leases up to `count` messages. Returns an error only if every request failed, because messages that other requests leased must be
/// handled.
pub(super) async fn fetch(
    core: Arc<QueueCore>,
    count: u32,
    settings: Arc<QueueSettings>,
) -> Result<Fetched, StoreError> {
    let full = (0..count / MAX_MESSAGES).map(|_| MAX_MESSAGES).take(MAX_REQUESTS as usize);
    let rest = Some(count % MAX_MESSAGES).filter(|rest| *rest > 0);
    let answers = join_all(full.chain(rest).map(|count| core.get(count, &settings))).await;
    let mut fetched = Fetched {
        messages: Vec::with_capacity(count as usize),
        next_visible_in: None,
        is_uncertain: false,
        is_partial: false,
    };
    let (mut succeeded, mut failed) = (false, None);
    for answer in answers {
        match answer {
            Ok((received, requested)) => {
                succeeded = true;
                fetched.messages.extend(received.messages.into_iter().map(|message| (message, requested)));
                fetched.is_uncertain |= received.is_uncertain;
                fetched.is_partial |= received.is_partial;
                fetched.next_visible_in = received.next_visible_in.or(fetched.next_visible_in);
            }
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if !succeeded => Err(error),
        Some(error) => {
            crate::log::debug!(queue = %core.name, %error, "one of several requests failed");
            Ok(fetched)
        }
        None => Ok(fetched),
    }
}
