//! Implements Put Blob, Get Blob, Get Blob Properties and Delete Blob.

use std::num::NonZero;

use azure_core::http::Etag;
use azure_core::http::headers::Headers;
use azure_storage_blob::models::{
    BlobClientDeleteOptions, BlobClientDownloadOptions, BlobClientUploadOptions,
};
use bytes::Bytes;

use super::super::call::{Call, with_limit};
use super::super::connection::Connection;
use super::super::error::http_date;
use super::super::queue::{from_headers, to_headers};
use jobqueue_storage::BlobName;
use jobqueue_storage::{
    Blob, BlobProperties, Condition, ETag, LeaseId, LeaseState, PutBlob, StoreError, StoreErrorKind,
};

/// The longest blob that one request writes, in bytes, and so the longest that is read: 5,000 MiB.
/// <https://learn.microsoft.com/rest/api/storageservices/put-blob>
const MAX_RANGE: usize = 5_000 * 1024 * 1024;

pub(super) async fn put(
    connection: &Connection,
    blob: &BlobName,
    data: Bytes,
    options: PutBlob,
) -> Result<BlobProperties, StoreError> {
    let call = Call::once("put blob", blob);
    let length = data.len() as u64;
    let metadata = to_headers(call, &options.metadata)?;
    let (if_match, if_none_match) = match &options.condition {
        Condition::Always => (None, None),
        Condition::IfAbsent => (None, Some(Etag::from("*"))),
        Condition::IfMatch(tag) => (Some(Etag::from(tag.as_str())), None),
    };
    let answer = call
        .run(async {
            let request = BlobClientUploadOptions {
                if_match,
                if_none_match,
                lease_id: options.lease.map(|lease| lease.expose()),
                metadata: Some(metadata),
                // One request writes the blob, whatever its length: readers never see a part of it.
                partition_size: NonZero::new(u64::MAX),
                parallel: NonZero::new(1),
                ..BlobClientUploadOptions::default()
            };
            connection.blob(blob).upload(data.into(), Some(request)).await
        })
        .await?;
    let headers = answer.raw_response.headers();
    let (Some(etag), Some(modified)) =
        (text(headers, "etag"), text(headers, "last-modified").and_then(http_date))
    else {
        return Err(call.unreadable("the answer has no ETag or Last-Modified"));
    };
    let lease = if options.lease.is_some() { LeaseState::Leased } else { LeaseState::Available };
    Ok(BlobProperties::new(length, ETag::new(etag), modified)
        .with_metadata(options.metadata)
        .with_lease(lease))
}

pub(super) async fn get(
    connection: &Connection,
    blob: &BlobName,
    max_bytes: u64,
) -> Result<Blob, StoreError> {
    let call = Call::reads("get blob", blob).with_long_answers_as(StoreErrorKind::TooLarge);
    // One request reads the blob, and a byte of a longer one shows that it is too long. Without a size the range would end at 2^64: the
    // service documents ranges within a blob, and others refuse what a signed number cannot hold.
    let range = usize::try_from(max_bytes).unwrap_or(usize::MAX).clamp(1, MAX_RANGE) + 1;
    let (headers, data) = call
        .run_again(connection.runtime(), || async {
            let options = BlobClientDownloadOptions {
                method_options: with_limit(max_bytes),
                partition_size: NonZero::new(range),
                parallel: NonZero::new(1),
                ..BlobClientDownloadOptions::default()
            };
            let answer = connection.blob(blob).download(Some(options)).await?;
            Ok((answer.headers, answer.body.collect().await?))
        })
        .await?;
    let properties = read_properties(call, &headers, data.len() as u64)?;
    Ok(Blob::new(data, properties))
}

pub(super) async fn properties(
    connection: &Connection,
    blob: &BlobName,
) -> Result<BlobProperties, StoreError> {
    let call = Call::reads("read blob properties", blob);
    let answer = call
        .run_again(connection.runtime(), || async { connection.blob(blob).get_properties(None).await })
        .await?;
    let headers = answer.headers();
    let length = text(headers, "content-length")
        .and_then(|length| length.parse().ok())
        .ok_or_else(|| call.unreadable("the answer has no Content-Length"))?;
    read_properties(call, headers, length)
}

pub(super) async fn delete(
    connection: &Connection,
    blob: &BlobName,
    lease: Option<&LeaseId>,
) -> Result<(), StoreError> {
    let call = Call::once("delete blob", blob);
    call.run(async {
        let options = BlobClientDeleteOptions {
            lease_id: lease.map(LeaseId::expose),
            ..BlobClientDeleteOptions::default()
        };
        connection.blob(blob).delete(Some(options)).await
    })
    .await
    .map(drop)
}

fn read_properties(call: Call<'_>, headers: &Headers, length: u64) -> Result<BlobProperties, StoreError> {
    let (Some(etag), Some(modified)) =
        (text(headers, "etag"), text(headers, "last-modified").and_then(http_date))
    else {
        return Err(call.unreadable("the answer has no ETag or Last-Modified"));
    };
    let lease = match text(headers, "x-ms-lease-state") {
        Some("leased") => LeaseState::Leased,
        Some("expired") => LeaseState::Expired,
        Some("breaking") => LeaseState::Breaking,
        Some("broken") => LeaseState::Broken,
        _ => LeaseState::Available,
    };
    Ok(BlobProperties::new(length, ETag::new(etag), modified)
        .with_metadata(from_headers(headers))
        .with_lease(lease))
}

fn text<'a>(headers: &'a Headers, name: &'static str) -> Option<&'a str> {
    headers.get_optional_str(&name.into())
}
