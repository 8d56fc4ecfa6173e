//! Implements the operations on containers.

use azure_core::http::headers::HeaderName;
use azure_core::http::pager::PagerOptions;
use azure_storage_blob::models::{
    BlobContainerClientListBlobsOptions, BlobItem, LeaseState as SdkLeaseState, ListBlobsIncludeItem,
};
use futures_util::StreamExt as _;

use super::super::call::{Call, limited};
use super::super::connection::Connection;
use super::super::error::http_date;
use jobqueue_storage::ContainerName;
use jobqueue_storage::{BlobListing, BlobProperties, ETag, LeaseState, StoreError, StoreErrorKind};

/// The greatest size of a page of 5,000 blobs with their metadata, in bytes.
const LIST_LIMIT: u64 = 64 * 1024 * 1024;

pub(super) async fn create(connection: &Connection, container: &ContainerName) -> Result<(), StoreError> {
    let call = Call::repeatable("create container", container);
    let created = call
        .run_again(connection.runtime(), || async {
            match connection.container(container).create(None).await {
                Ok(_) => Ok(()),
                Err(error) if has_code(&error, "ContainerAlreadyExists") => Ok(()),
                Err(error) => Err(error),
            }
        })
        .await;
    match created {
        // A caller that may only use an existing container need not be allowed to create it.
        Err(error) if error.kind() == StoreErrorKind::Unauthorized && exists(connection, container).await => {
            Ok(())
        }
        created => created,
    }
}

async fn exists(connection: &Connection, container: &ContainerName) -> bool {
    let call = Call::reads("read container properties", container);
    call.run(async { connection.container(container).get_properties(None).await }).await.is_ok()
}

fn has_code(error: &azure_core::Error, wanted: &str) -> bool {
    matches!(error.kind(), azure_core::error::ErrorKind::HttpResponse { error_code: Some(code), .. } if code == wanted)
}

pub(super) async fn delete(connection: &Connection, container: &ContainerName) -> Result<(), StoreError> {
    let call = Call::once("delete container", container);
    call.run(async { connection.container(container).delete(None).await }).await.map(drop)
}

pub(super) async fn list(
    connection: &Connection,
    container: &ContainerName,
    prefix: &str,
    marker: Option<&str>,
) -> Result<BlobListing, StoreError> {
    let call = Call::reads("list blobs", container);
    let page = call
        .run_again(connection.runtime(), || async {
            let options = BlobContainerClientListBlobsOptions {
                prefix: Some(prefix.to_owned()).filter(|prefix| !prefix.is_empty()),
                marker: marker.map(str::to_owned),
                include: Some(vec![ListBlobsIncludeItem::Metadata]),
                method_options: PagerOptions { context: limited(LIST_LIMIT), ..PagerOptions::default() },
                ..BlobContainerClientListBlobsOptions::default()
            };
            let mut pages = connection.container(container).list_blobs(Some(options))?.into_pages();
            let Some(page) = pages.next().await.transpose()? else { return Ok(None) };
            let now = page.headers().get_optional_str(&HeaderName::from_static("date")).and_then(http_date);
            Ok(Some((page.into_model()?, now)))
        })
        .await?;
    let Some((page, now)) = page else { return Ok(BlobListing::default()) };
    let next = page.next_marker.filter(|marker| !marker.is_empty());
    let blobs = page.blob_items.into_iter().filter_map(listed).collect();
    Ok(BlobListing::new(blobs).with_next(next).with_now(now))
}

/// Returns a blob of a listing; `None` when it lacks a required property.
fn listed(item: BlobItem) -> Option<(String, BlobProperties)> {
    let properties = item.properties?;
    let metadata = item.metadata.and_then(|metadata| metadata.values).unwrap_or_default();
    // The listing omits the quotes that a condition needs.
    let etag = properties.etag?.to_string();
    let etag = if etag.starts_with('"') { etag } else { format!("\"{etag}\"") };
    let (length, modified) = (properties.content_length?, properties.last_modified?.into());
    let lease = properties.lease_state.map_or(LeaseState::Available, lease_state);
    let properties = BlobProperties::new(length, ETag::new(etag), modified);
    Some((item.name?, properties.with_metadata(metadata.into_iter().collect()).with_lease(lease)))
}

fn lease_state(state: SdkLeaseState) -> LeaseState {
    match state {
        SdkLeaseState::Leased => LeaseState::Leased,
        SdkLeaseState::Expired => LeaseState::Expired,
        SdkLeaseState::Breaking => LeaseState::Breaking,
        SdkLeaseState::Broken => LeaseState::Broken,
        _ => LeaseState::Available,
    }
}
