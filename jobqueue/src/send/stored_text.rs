//! Turns a text that was written earlier into a message.

use crate::envelope::{Parsed, parse};
use crate::fifo::is_in_order;
use crate::name::QueueName;
use crate::storage::{PutMessage, QueueStore, StoreError};

/// Returns the message for a text that was prepared for a queue and kept in a record. The event in it tells its key and its order.
///
/// # Errors
/// The storage cannot be asked whether it keeps the order itself.
pub(crate) async fn message_of(
    store: &dyn QueueStore,
    queue: &QueueName,
    text: &str,
) -> Result<PutMessage, StoreError> {
    let put = PutMessage::new(text);
    let Ok(Parsed::Event(event)) = parse(text) else { return Ok(put) };
    let keeps_order = is_in_order(&event) && store.orders_groups(queue).await?;
    let group = event.key.clone().filter(|_| keeps_order);
    Ok(put.with_group(group).with_shard_key(event.key))
}
