//! Implements Update Message and Delete Message, which need a receipt.

use azure_storage_queue::models::{QueueClientDeleteMessageOptions, QueueClientUpdateMessageOptions};
use bytes::Bytes;

use super::super::call::{Call, with_receipt};
use super::super::connection::Connection;
use super::super::pipeline::{PLACEHOLDER, RECEIPT};
use super::super::{time, xml};
use super::get;
use jobqueue_storage::QueueName;
use jobqueue_storage::rules::limits;
use jobqueue_storage::{MessageRef, PopReceipt, StoreError, UpdateMessage, Updated};

pub(super) async fn update(
    connection: &Connection,
    queue: &QueueName,
    message: &MessageRef,
    change: &UpdateMessage,
) -> Result<Updated, StoreError> {
    let call = Call::once("update message", queue);
    check(call, message)?;
    limits::check_update(queue, change)?;
    let visibility = time::seconds(call, "a visibility timeout", change.visibility)?;
    let body = change.text.as_deref().map(|text| Bytes::from(xml::write_message(text)));
    let answer = call
        .run(async {
            let options = QueueClientUpdateMessageOptions {
                queue_message: body.map(Into::into),
                method_options: with_receipt(&message.receipt),
                ..QueueClientUpdateMessageOptions::default()
            };
            let queue = connection.queue(queue)?;
            queue.update_message(message.id.as_str(), PLACEHOLDER, visibility, Some(options)).await
        })
        .await?;
    let headers = answer.headers();
    let receipt = headers
        .get_optional_str(&RECEIPT)
        .filter(|receipt| !receipt.is_empty())
        .ok_or_else(|| call.unreadable("the answer has no new receipt"))?;
    let next_visible = time::date(headers.get_optional_str(&"x-ms-time-next-visible".into()));
    Ok(Updated::new(PopReceipt::new(receipt), next_visible))
}

pub(super) async fn delete(
    connection: &Connection,
    queue: &QueueName,
    message: &MessageRef,
) -> Result<(), StoreError> {
    let call = Call::once("delete message", queue);
    check(call, message)?;
    call.run(async {
        let options = QueueClientDeleteMessageOptions {
            method_options: with_receipt(&message.receipt),
            ..QueueClientDeleteMessageOptions::default()
        };
        connection.queue(queue)?.delete_message(message.id.as_str(), PLACEHOLDER, Some(options)).await
    })
    .await
    .map(drop)
}

fn check(call: Call<'_>, message: &MessageRef) -> Result<(), StoreError> {
    if get::is_id(message.id.as_str()) {
        Ok(())
    } else {
        Err(call.refuse("the message's id does not have the form of this storage's ids"))
    }
}
