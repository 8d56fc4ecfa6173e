//! Implements the blob half of the port over the service's REST operations.

mod leases;

use std::num::NonZero;
use std::sync::Arc;

use async_trait::async_trait;
use azure_core::error::ErrorKind;
use azure_core::http::Etag;
use azure_core::http::headers::Headers;
use azure_core::http::pager::PagerOptions;
use azure_storage_blob::BlobClient;
use azure_storage_blob::models::{
    BlobClientDeleteOptions, BlobClientDownloadOptions, BlobClientUploadOptions,
    BlobContainerClientListBlobsOptions, BlobItem, DeleteSnapshotsOptionType, LeaseState,
    ListBlobsIncludeItem,
};
use bytes::Bytes;
use futures_util::StreamExt as _;

use super::call::{Call, limited, with_limit};
use super::connection::Connection;
use super::convert::{from_headers, http_date, to_headers};
use super::probe;
use jobqueue_storage::{
    Access, Blob, BlobListing, BlobName, BlobPowers, BlobProperties, BlobStore, Condition, ContainerName,
    Detach, ETag, LeaseId, Permissions, PutBlob, StoreError, StoreErrorKind,
};

/// The maximum size of a page of 5,000 blobs with their metadata, in bytes.
const MAX_LIST_BYTES: u64 = 64 * 1024 * 1024;
/// The usual size of such a page, in bytes; the time limit allows for it on a slow connection. An entry takes
/// 1 KB, or 1.4 KB with the metadata of a record.
const USUAL_LIST_BYTES: u64 = 8 * 1024 * 1024;

/// The longest blob that a single request can write, in bytes, and so the longest that is read: 5,000 MiB.
/// <https://learn.microsoft.com/rest/api/storageservices/put-blob>
const MAX_BLOB_BYTES: u64 = 5_000 * 1024 * 1024;

/// The blobs of a storage account: block blobs, each written by one request.
#[derive(Debug)]
pub(super) struct AzureBlobs {
    connection: Arc<Connection>,
}

impl AzureBlobs {
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        Self { connection }
    }

    fn client(&self, blob: &BlobName) -> BlobClient {
        self.connection.blob(blob)
    }
}

#[async_trait]
impl BlobStore for AzureBlobs {
    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        let call = Call::repeatable("create container", container);
        let client = self.connection.container(container);
        let created = call.run_repeatable(self.connection.runtime(), || async {
            match client.create(None).await {
                Err(error) if already_exists(&error) => Ok(()),
                created => created.map(drop),
            }
        });
        match created.await {
            // A caller that may only use existing containers may be forbidden to create them.
            Err(error) if error.kind() == StoreErrorKind::Unauthorized => {
                let look = Call::reads("read container properties", container);
                look.run(async { client.get_properties(None).await }).await.map(drop).map_err(|_| error)
            }
            created => created,
        }
    }

    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        let call = Call::once("delete container", container);
        call.run(async { self.connection.container(container).delete(None).await }).await.map(drop)
    }

    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        let length = data.len() as u64;
        let call = Call::once("put blob", blob).with_content(length);
        let metadata = to_headers(call, &options.metadata)?;
        let (if_match, if_none_match) = match &options.condition {
            Condition::Always => (None, None),
            Condition::IfAbsent => (None, Some(Etag::from("*"))),
            Condition::IfMatch(tag) => (Some(Etag::from(tag.as_str())), None),
        };
        let answer = call.run(async {
            let request = BlobClientUploadOptions {
                if_match,
                if_none_match,
                lease_id: options.lease.map(|lease| lease.expose()),
                metadata: Some(metadata),
                // A single request writes the blob, whatever its length, so readers never see a part of it.
                partition_size: NonZero::new(u64::MAX),
                parallel: NonZero::new(1),
                ..BlobClientUploadOptions::default()
            };
            self.client(blob).upload(data.into(), Some(request)).await
        });
        let properties = read_properties(call, answer.await?.raw_response.headers(), length)?;
        Ok(properties.with_metadata(options.metadata).with_active_lease(options.lease.is_some()))
    }

    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError> {
        let call = Call::reads("get blob", blob).with_content(max_bytes);
        // A single request reads the blob, plus a byte that shows whether the blob is too long. Without a
        // size, the range would end at 2^64: the service documents only ranges within a blob, and other
        // servers refuse numbers beyond 63 bits.
        let range = usize::try_from(max_bytes.clamp(1, MAX_BLOB_BYTES) + 1).unwrap_or(usize::MAX);
        let read = call.run_repeatable(self.connection.runtime(), || async {
            let options = BlobClientDownloadOptions {
                method_options: with_limit(max_bytes),
                partition_size: NonZero::new(range),
                parallel: NonZero::new(1),
                ..BlobClientDownloadOptions::default()
            };
            let answer = self.client(blob).download(Some(options)).await?;
            Ok((answer.headers, answer.body.collect().await?))
        });
        let (headers, data) = read.await?;
        let properties = read_properties(call, &headers, data.len() as u64)?;
        Ok(Blob::new(data, properties))
    }

    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError> {
        let call = Call::reads("read blob properties", blob);
        let read = || async { self.client(blob).get_properties(None).await };
        let answer = call.run_repeatable(self.connection.runtime(), read).await?;
        let headers = answer.headers();
        let length = text(headers, "content-length")
            .and_then(|length| length.parse().ok())
            .ok_or_else(|| call.unreadable("the answer has no Content-Length"))?;
        read_properties(call, headers, length)
    }

    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError> {
        let options = BlobClientDeleteOptions {
            lease_id: lease.map(LeaseId::expose),
            // The service does not delete a blob and leave its snapshots, which a policy of the account may
            // have made.
            delete_snapshots: Some(DeleteSnapshotsOptionType::Include),
            ..BlobClientDeleteOptions::default()
        };
        let call = Call::once("delete blob", blob);
        call.run(async { self.client(blob).delete(Some(options)).await }).await.map(drop)
    }

    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        let call = Call::reads("list blobs", container).with_content(USUAL_LIST_BYTES);
        let read = call.run_repeatable(self.connection.runtime(), || async {
            let options = BlobContainerClientListBlobsOptions {
                prefix: Some(prefix.to_owned()).filter(|prefix| !prefix.is_empty()),
                marker: marker.map(str::to_owned),
                include: Some(vec![ListBlobsIncludeItem::Metadata]),
                method_options: PagerOptions { context: limited(MAX_LIST_BYTES), ..PagerOptions::default() },
                ..BlobContainerClientListBlobsOptions::default()
            };
            let mut pages = self.connection.container(container).list_blobs(Some(options))?.into_pages();
            let Some(page) = pages.next().await.transpose()? else { return Ok(None) };
            let now = text(page.headers(), "date").and_then(http_date);
            Ok(Some((page.into_model()?, now)))
        });
        let Some((page, now)) = read.await? else { return Ok(BlobListing::default()) };
        let next = page.next_marker.filter(|marker| !marker.is_empty());
        let blobs = page.blob_items.into_iter().filter_map(listed).collect();
        Ok(BlobListing::new(blobs).with_next(next).with_now(now))
    }

    fn powers(self: Arc<Self>) -> BlobPowers {
        BlobPowers {
            address: Some(self.connection.account().blobs.as_str().into()),
            leases: Some(Arc::clone(&self) as _),
            permissions: Some(Arc::clone(&self) as _),
            detach: Some(self),
            ..BlobPowers::default()
        }
    }
}

#[async_trait]
impl Permissions<ContainerName> for AzureBlobs {
    async fn check_access(&self, container: &ContainerName, access: Access) -> Result<(), StoreError> {
        probe::blobs(&self.connection, container, access).await
    }
}

impl Detach<dyn BlobStore> for AzureBlobs {
    fn detached(&self) -> Arc<dyn BlobStore> {
        Arc::new(Self { connection: self.connection.detached() })
    }
}

/// Returns whether a container could not be created because it exists.
fn already_exists(error: &azure_core::Error) -> bool {
    matches!(error.kind(), ErrorKind::HttpResponse { error_code: Some(code), .. } if code == "ContainerAlreadyExists")
}

fn read_properties(call: Call<'_>, headers: &Headers, length: u64) -> Result<BlobProperties, StoreError> {
    let (Some(etag), Some(modified)) =
        (text(headers, "etag"), text(headers, "last-modified").and_then(http_date))
    else {
        return Err(call.unreadable("the answer has no ETag or Last-Modified"));
    };
    Ok(BlobProperties::new(length, ETag::new(etag), modified)
        .with_metadata(from_headers(headers))
        .with_active_lease(matches!(text(headers, "x-ms-lease-state"), Some("leased" | "breaking"))))
}

fn text<'a>(headers: &'a Headers, name: &'static str) -> Option<&'a str> {
    headers.get_optional_str(&name.into())
}

/// Returns a blob of a listing; `None` if it lacks a required property, or is a folder of an account with a
/// hierarchical namespace.
fn listed(item: BlobItem) -> Option<(String, BlobProperties)> {
    let properties = item.properties?;
    let metadata = item.metadata.and_then(|metadata| metadata.values).unwrap_or_default();
    if metadata.get("hdi_isfolder").is_some_and(|is_folder| is_folder == "true") {
        return None;
    }
    // The listing omits the quotes that a condition needs.
    let etag = properties.etag?.to_string();
    let etag = if etag.starts_with('"') { etag } else { format!("\"{etag}\"") };
    let (length, modified) = (properties.content_length?, properties.last_modified?.into());
    let is_leased = matches!(properties.lease_state, Some(LeaseState::Leased | LeaseState::Breaking));
    let properties = BlobProperties::new(length, ETag::new(etag), modified);
    Some((item.name?, properties.with_metadata(metadata.into_iter().collect()).with_active_lease(is_leased)))
}
