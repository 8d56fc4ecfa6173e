//! Implements the operations on whole queues. All may be repeated without harm.

use std::collections::HashMap;

use azure_core::http::StatusCode;
use azure_core::http::headers::Headers;
use azure_core::http::pager::PagerOptions;
use azure_storage_queue::models::{QueueClientCreateOptions, QueueServiceClientListQueuesOptions};
use futures_util::StreamExt as _;

use super::super::call::{Call, limited};
use super::super::connection::Connection;
use jobqueue_storage::QueueName;
use jobqueue_storage::{Created, Metadata, QueueProperties, StoreError, StoreErrorKind};

/// The greatest size of a page of 5,000 names, in bytes.
const LIST_LIMIT: u64 = 8 * 1024 * 1024;

/// The number of times that a clear is repeated after the service broke it off: it deletes a large queue piece by
/// piece.
const CLEAR_ROUNDS: u32 = 60;

pub(super) async fn create(
    connection: &Connection,
    queue: &QueueName,
    metadata: &Metadata,
) -> Result<Created, StoreError> {
    let call = Call::repeatable("create queue", queue);
    let headers = to_headers(call, metadata)?;
    let answer = call
        .run_again(connection.runtime(), || async {
            let options = QueueClientCreateOptions {
                metadata: Some(headers.clone()),
                ..QueueClientCreateOptions::default()
            };
            connection.queue(queue)?.create(Some(options)).await
        })
        .await;
    match answer {
        Ok(answer) if answer.status() == StatusCode::NoContent => Ok(Created::Existed),
        Ok(_) => Ok(Created::New),
        // The service compares by its own rules; ours ignore the case of names. And a caller that may only use an
        // existing queue need not be allowed to create it.
        Err(error)
            if matches!(error.kind(), StoreErrorKind::QueueAlreadyExists | StoreErrorKind::Unauthorized) =>
        {
            match properties(connection, queue).await {
                Ok(present) if present.metadata == *metadata => Ok(Created::Existed),
                Ok(_) => Err(call.error(StoreErrorKind::QueueAlreadyExists)),
                Err(_) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

pub(super) async fn delete(connection: &Connection, queue: &QueueName) -> Result<(), StoreError> {
    let call = Call::once("delete queue", queue);
    call.run(async { connection.queue(queue)?.delete(None).await }).await.map(drop)
}

pub(super) async fn list(connection: &Connection, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
    let call = Call::reads("list queues", &prefix);
    let mut names = Vec::<QueueName>::new();
    let mut marker = None;
    loop {
        let page = call
            .run_again(connection.runtime(), || async {
                let options = QueueServiceClientListQueuesOptions {
                    prefix: Some(prefix.to_owned()).filter(|prefix| !prefix.is_empty()),
                    marker: marker.clone(),
                    method_options: PagerOptions { context: limited(LIST_LIMIT), ..PagerOptions::default() },
                    ..QueueServiceClientListQueuesOptions::default()
                };
                let mut pages = connection.queue_service().list_queues(Some(options))?.into_pages();
                pages.next().await.transpose()?.map(|page| page.into_model()).transpose()
            })
            .await?;
        let Some(page) = page else { break };
        let before = names.len();
        // Names that our rules refuse, such as the service's own `$…`, are not ours.
        let found = page.queue_items.iter().filter_map(|item| QueueName::new(item.name.as_deref()?).ok());
        names.extend(found);
        names.sort();
        names.dedup();
        marker = page.next_marker.filter(|marker| !marker.is_empty());
        // A storage that pages in circles (Azurite does) must not hold the caller forever.
        if marker.is_none() || names.len() == before {
            break;
        }
    }
    Ok(names)
}

pub(super) async fn properties(
    connection: &Connection,
    queue: &QueueName,
) -> Result<QueueProperties, StoreError> {
    let call = Call::reads("read queue properties", queue);
    let answer = call
        .run_again(connection.runtime(), || async { connection.queue(queue)?.get_properties(None).await })
        .await?;
    let count = answer
        .headers()
        .get_optional_str(&"x-ms-approximate-messages-count".into())
        .and_then(|count| count.parse().ok())
        .ok_or_else(|| call.unreadable("the answer has no x-ms-approximate-messages-count"))?;
    Ok(QueueProperties::new(from_headers(answer.headers()), count))
}

pub(super) async fn set_metadata(
    connection: &Connection,
    queue: &QueueName,
    metadata: &Metadata,
) -> Result<(), StoreError> {
    let call = Call::repeatable("set queue metadata", queue);
    let headers = to_headers(call, metadata)?;
    call.run_again(connection.runtime(), || async {
        connection.queue(queue)?.set_metadata(&headers, None).await
    })
    .await
    .map(drop)
}

pub(super) async fn clear(connection: &Connection, queue: &QueueName) -> Result<(), StoreError> {
    let call = Call::repeatable("clear queue", queue);
    let mut round = 1;
    loop {
        match call.run(async { connection.queue(queue)?.clear(None).await }).await {
            // The service asks to repeat the call until it is complete.
            Err(error) if error.kind() == StoreErrorKind::Timeout && round < CLEAR_ROUNDS => round += 1,
            answer => return answer.map(drop),
        }
    }
}

/// Returns the checked metadata in the SDK's form.
pub(in super::super) fn to_headers(
    call: Call<'_>,
    metadata: &Metadata,
) -> Result<HashMap<String, String>, StoreError> {
    metadata.check().map_err(|problem| call.refuse(problem))?;
    Ok(metadata.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

pub(in super::super) fn from_headers(headers: &Headers) -> Metadata {
    let ours =
        headers.iter().filter_map(|(name, value)| Some((name.as_str().strip_prefix("x-ms-meta-")?, value)));
    ours.map(|(name, value)| (name, value.as_str())).collect()
}
