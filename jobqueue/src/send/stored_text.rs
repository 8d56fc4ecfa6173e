//! Turns a text that was written earlier into a message.

use crate::envelope::{Parsed, parse};
use crate::group_log::is_in_order;
use crate::storage::{PutMessage, QueueName, Queues, StoreError};

/// Returns the message for a text that was prepared for a queue and stored in a record, with the key and the order from
/// its event.
///
/// # Errors
/// The storage cannot be asked whether it keeps the order itself.
pub(crate) async fn message_of(
    store: &Queues,
    queue: &QueueName,
    text: &str,
) -> Result<PutMessage, StoreError> {
    let put = PutMessage::new(text);
    let Ok(Parsed::Event(event)) = parse(text) else { return Ok(put) };
    let keeps_order = is_in_order(&event) && store.orders_groups(queue).await?;
    let group = event.key.clone().filter(|_| keeps_order);
    Ok(put.with_group(group).with_shard_key(event.key))
}
