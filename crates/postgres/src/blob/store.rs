//! Implements the blob half of the port.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use tokio_postgres::types::Type;

use super::row::{BlobLookup, BlobRow, LeaseColumns, blob_columns, place, tag};
use super::size::{MAX_SHORT_BYTES, check_put, further_time};
use crate::database::{Call, Parameter};
use crate::metadata;
use crate::store::Store;
use crate::time::to_instant;
use jobqueue_storage::rules::lease::BlobLease;
use jobqueue_storage::rules::limits::{self, MAX_LISTED_BLOBS};
use jobqueue_storage::rules::listing::NameRange;
use jobqueue_storage::{
    Blob, BlobLeases, BlobListing, BlobName, BlobPowers, BlobProperties, BlobStore, Condition, ContainerName,
    Detach, LeaseId, Operation, PutBlob, StoreError, StoreErrorKind,
};

/// The number of attempts at a change while other processes change the same blob. In each round one of the
/// changes succeeds.
const MAX_ATTEMPTS: usize = 100;

/// Creates a container. If it exists, the statement uses no number of the sequence, whose numbers have 32
/// bits.
pub(crate) const CREATE_CONTAINER: &str = "INSERT INTO jobqueue.container (name)
    SELECT $1 WHERE NOT EXISTS (SELECT FROM jobqueue.container WHERE name = $1) ON CONFLICT (name) DO NOTHING";

/// The blobs are unreachable at once. Their rows are removed step by step.
const DELETE_CONTAINER: &str = "WITH gone AS (DELETE FROM jobqueue.container WHERE name = $1 RETURNING id)
    INSERT INTO jobqueue.garbage (kind, owner, since) SELECT 'container', id, jobqueue.now() FROM gone RETURNING owner";

/// Creates a blob, unless a blob of this name exists. The answer has no row if the container does not exist,
/// and `NULL` if the blob already exists.
pub(crate) const CREATE: &str =
    "WITH place AS MATERIALIZED (SELECT id FROM jobqueue.container WHERE name = $1), created AS (
        INSERT INTO jobqueue.blob (container, name, metadata, length, content, revision, etag, modified_at)
        SELECT id, $2, $3, pg_catalog.length($4), $4, r.next, r.next, jobqueue.now()
        FROM place, (SELECT pg_catalog.nextval('jobqueue.revision') AS next) AS r
        ON CONFLICT (container, name) DO NOTHING RETURNING etag, modified_at
    ) SELECT etag, modified_at FROM place LEFT JOIN created ON true";

/// Replaces a blob that has not changed since it was read. $3 says whether it had an active lease; that, too,
/// must not have changed.
const REPLACE: &str = "UPDATE jobqueue.blob SET lease_millis = $4, lease_until = $5, lease_id = $6, metadata = $7, length = pg_catalog.length($8),
        content = $8, revision = r.next, etag = r.next, modified_at = jobqueue.now()
    FROM (SELECT pg_catalog.nextval('jobqueue.revision') AS next) AS r
    WHERE id = $1 AND revision = $2 AND (coalesce(lease_until, 0) > jobqueue.now()) = $3 RETURNING etag, modified_at";

const CHANGE_LEASE: &str = "UPDATE jobqueue.blob SET lease_millis = $4, lease_until = $5, lease_id = $6, revision = pg_catalog.nextval('jobqueue.revision')
    WHERE id = $1 AND revision = $2 AND (coalesce(lease_until, 0) > jobqueue.now()) = $3 RETURNING id";

const DELETE: &str = "DELETE FROM jobqueue.blob
    WHERE id = $1 AND revision = $2 AND (coalesce(lease_until, 0) > jobqueue.now()) = $3 RETURNING id";

/// Reads a blob, but not the content of a blob of more than $3 bytes.
const GET: &str = concat!(
    "SELECT ",
    blob_columns!(),
    ", jobqueue.now(), CASE WHEN b.length <= $3 THEN b.content END",
    place!()
);

/// Lists the blobs with names from $2 to $3. The container is a subquery: with a join the planner would sort
/// all names for each page.
const LIST: &str = concat!(
    "SELECT ",
    blob_columns!(),
    ", jobqueue.now() FROM jobqueue.blob b WHERE b.container = (SELECT id FROM jobqueue.container WHERE name = $1)
        AND b.name >= $2 AND b.name < $3 ORDER BY b.name LIMIT $4"
);

/// The server's time, for a listing without rows.
const TIME: &str = "SELECT jobqueue.now(), EXISTS (SELECT FROM jobqueue.container WHERE name = $1)";

/// A blob to write.
struct Written<'b> {
    blob: &'b BlobName,
    data: Bytes,
    options: PutBlob,
}

#[async_trait]
impl BlobStore for Store {
    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        let call = Call::new(Operation::CreateContainer, container);
        self.database.query(call, CREATE_CONTAINER, &[(&container.as_str(), Type::TEXT)]).await.map(drop)
    }

    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        let call = Call::new(Operation::DeleteContainer, container);
        let rows = self.database.query(call, DELETE_CONTAINER, &[(&container.as_str(), Type::TEXT)]).await?;
        rows.first().map(drop).ok_or_else(|| call.refuse(StoreErrorKind::ContainerNotFound))
    }

    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        check_put(blob, &data, &options)?;
        let new = &Written { blob, data, options };
        let call = Call::new(Operation::PutBlob, new.blob);
        let creates = new.options.condition == Condition::IfAbsent && new.options.lease.is_none();
        if creates && let Some(created) = self.create_blob(new).await? {
            return Ok(created);
        }
        for _ in 0..MAX_ATTEMPTS {
            let lookup = BlobLookup::find(&self.database, call, new.blob).await?;
            let present = lookup.blob.as_ref();
            let refused = |kind| call.refuse(kind);
            new.options.condition.check(present.map(|row| &row.etag)).map_err(refused)?;
            let lease = present.map_or(BlobLease::Available, |row| row.lease);
            let lease = lease.write(lookup.now, new.options.lease).map_err(refused)?;
            let written = match present {
                None => self.create_blob(new).await?,
                Some(row) => self.replace_blob(new, row, lease, lookup.now).await?,
            };
            if let Some(written) = written {
                return Ok(written);
            }
        }
        Err(contended(call))
    }

    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError> {
        let call = Call::new(Operation::GetBlob, blob);
        // Most contents are much shorter than `max_bytes`. A small record must not wait for a turn among
        // large payloads.
        let mut limit = max_bytes.min(MAX_SHORT_BYTES);
        loop {
            match self.read_blob(call, blob, limit).await? {
                Ok(found) => return Ok(found),
                Err(length) if length > max_bytes => {
                    let detail = format!("it has {length} bytes; {max_bytes} are allowed");
                    return Err(call.refuse(StoreErrorKind::TooLarge).with_detail(detail));
                }
                Err(length) => limit = length,
            }
        }
    }

    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError> {
        let call = Call::new(Operation::BlobProperties, blob);
        let lookup = BlobLookup::find(&self.database, call, blob).await?;
        Ok(lookup.require(call)?.properties(lookup.now))
    }

    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError> {
        let call = Call::new(Operation::DeleteBlob, blob);
        for _ in 0..MAX_ATTEMPTS {
            let lookup = BlobLookup::find(&self.database, call, blob).await?;
            let row = lookup.require(call)?;
            row.lease.write(lookup.now, lease.copied()).map_err(|kind| call.refuse(kind))?;
            let was_active = row.lease.is_active(lookup.now);
            let values = [
                (&row.id as _, Type::INT8),
                (&row.revision as _, Type::INT8),
                (&was_active as _, Type::BOOL),
            ];
            if !self.database.query(call, DELETE, &values).await?.is_empty() {
                return Ok(());
            }
        }
        Err(contended(call))
    }

    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        let call = Call::new(Operation::ListBlobs, container);
        let NameRange { from, end } = NameRange::of_page(prefix, marker);
        let limit = MAX_LISTED_BLOBS as i64 + 1;
        let values = [
            (&container.as_str() as _, Type::TEXT),
            (&from as _, Type::TEXT),
            (&end as _, Type::TEXT),
            (&limit as _, Type::INT8),
        ];
        let rows = self.database.query(call, LIST, &values).await?;
        let mut listing = BlobListing::default();
        for row in &rows {
            let found = BlobRow::read(call, row)?;
            if listing.blobs.len() == MAX_LISTED_BLOBS {
                listing.next = listing.blobs.last().map(|(name, _)| name.clone());
                break;
            }
            let now = to_instant(call.get(row, 10)?);
            listing.now = listing.now.or(Some(now));
            let properties = found.properties(now);
            listing.blobs.push((found.name, properties));
        }
        if listing.now.is_none() {
            listing.now = Some(self.time_of(call, container).await?);
        }
        Ok(listing)
    }

    fn powers(self: Arc<Self>) -> BlobPowers {
        BlobPowers {
            leases: Some(Arc::clone(&self) as _),
            journal: Some(Arc::clone(&self) as _),
            transaction_place: Some(self.transaction_place()),
            detach: Some(self),
            ..BlobPowers::default()
        }
    }
}

#[async_trait]
impl BlobLeases for Store {
    async fn acquire_lease(
        &self,
        blob: &BlobName,
        duration: Duration,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        limits::check_lease_duration(blob, duration)?;
        let id = *proposed;
        self.change_lease(Operation::AcquireLease, blob, |lease, now| lease.acquire(now, duration, id))
            .await?;
        Ok(id)
    }

    async fn renew_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<LeaseId, StoreError> {
        let id = *lease;
        self.change_lease(Operation::RenewLease, blob, |lease, now| lease.renew(now, id)).await?;
        Ok(id)
    }

    async fn release_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<(), StoreError> {
        let id = *lease;
        self.change_lease(Operation::ReleaseLease, blob, |lease, _| lease.release(id)).await
    }
}

impl Detach<dyn BlobStore> for Store {
    fn detached(&self) -> Arc<dyn BlobStore> {
        Arc::new(self.with_own_connections())
    }
}

impl Store {
    /// Reads a blob of at most `max_bytes` bytes, within the time for a blob of that size. Returns the length
    /// if the blob is longer.
    async fn read_blob(
        &self,
        call: Call<'_>,
        blob: &BlobName,
        max_bytes: u64,
    ) -> Result<Result<Blob, u64>, StoreError> {
        let limit = i64::try_from(max_bytes).unwrap_or(i64::MAX);
        let values = [
            (&blob.container().as_str() as _, Type::TEXT),
            (&blob.name() as _, Type::TEXT),
            (&limit as _, Type::INT8),
        ];
        let rows = self.database.query_longer(call, GET, &values, further_time(max_bytes)).await?;
        let row = rows.first().ok_or_else(|| call.refuse(StoreErrorKind::ContainerNotFound))?;
        if call.get::<Option<i64>>(row, 0)?.is_none() {
            return Err(call.refuse(StoreErrorKind::BlobNotFound));
        }
        let found = BlobRow::read(call, row)?;
        let Some(content) = call.get::<Option<&[u8]>>(row, 11)? else { return Ok(Err(found.length)) };
        let now = to_instant(call.get(row, 10)?);
        Ok(Ok(Blob::new(Bytes::copy_from_slice(content), found.properties(now))))
    }

    async fn create_blob(&self, new: &Written<'_>) -> Result<Option<BlobProperties>, StoreError> {
        let (content, metadata) = (&new.data[..], metadata::to_text(&new.options.metadata));
        let values = [
            (&new.blob.container().as_str() as _, Type::TEXT),
            (&new.blob.name() as _, Type::TEXT),
            (&metadata as _, Type::TEXT),
            (&content as _, Type::BYTEA),
        ];
        self.written(CREATE, &values, new, false).await
    }

    async fn replace_blob(
        &self,
        new: &Written<'_>,
        row: &BlobRow,
        lease: BlobLease,
        now: SystemTime,
    ) -> Result<Option<BlobProperties>, StoreError> {
        let (was_active, columns) = (row.lease.is_active(now), LeaseColumns::of(&lease));
        let (content, metadata) = (&new.data[..], metadata::to_text(&new.options.metadata));
        let values = [
            (&row.id as _, Type::INT8),
            (&row.revision as _, Type::INT8),
            (&was_active as _, Type::BOOL),
            (&columns.millis as _, Type::INT8),
            (&columns.until as _, Type::INT8),
            (&columns.id as _, Type::TEXT),
            (&metadata as _, Type::TEXT),
            (&content as _, Type::BYTEA),
        ];
        self.written(REPLACE, &values, new, lease.is_active(now)).await
    }

    /// Runs a statement that writes a blob. Returns `None` if the row has changed since it was read.
    async fn written(
        &self,
        sql: &str,
        values: &[Parameter<'_>],
        new: &Written<'_>,
        is_leased: bool,
    ) -> Result<Option<BlobProperties>, StoreError> {
        let call = Call::new(Operation::PutBlob, new.blob);
        let length = new.data.len() as u64;
        let rows = self.database.query_longer(call, sql, values, further_time(length)).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let Some(etag) = call.get(row, 0)? else { return Ok(None) };
        let modified = to_instant(call.get(row, 1)?);
        let properties = BlobProperties::new(length, tag(etag), modified);
        Ok(Some(properties.with_metadata(new.options.metadata.clone()).with_active_lease(is_leased)))
    }

    /// Changes a blob's lease by `rule`. The ETag and the content do not change.
    async fn change_lease(
        &self,
        operation: Operation,
        blob: &BlobName,
        rule: impl Fn(&BlobLease, SystemTime) -> Result<BlobLease, StoreErrorKind> + Send + Sync,
    ) -> Result<(), StoreError> {
        let call = Call::new(operation, blob);
        for _ in 0..MAX_ATTEMPTS {
            let lookup = BlobLookup::find(&self.database, call, blob).await?;
            let row = lookup.require(call)?;
            let columns = LeaseColumns::of(&rule(&row.lease, lookup.now).map_err(|kind| call.refuse(kind))?);
            let was_active = row.lease.is_active(lookup.now);
            let values = [
                (&row.id as _, Type::INT8),
                (&row.revision as _, Type::INT8),
                (&was_active as _, Type::BOOL),
                (&columns.millis as _, Type::INT8),
                (&columns.until as _, Type::INT8),
                (&columns.id as _, Type::TEXT),
            ];
            if !self.database.query(call, CHANGE_LEASE, &values).await?.is_empty() {
                return Ok(());
            }
        }
        Err(contended(call))
    }

    /// Returns the server's time if the container exists. The error `ContainerNotFound` carries it, too.
    async fn time_of(&self, call: Call<'_>, container: &ContainerName) -> Result<SystemTime, StoreError> {
        let rows = self.database.query(call, TIME, &[(&container.as_str() as _, Type::TEXT)]).await?;
        let missing = || call.refuse(StoreErrorKind::ContainerNotFound);
        let row = rows.first().ok_or_else(missing)?;
        let now = to_instant(call.get(row, 0)?);
        if call.get(row, 1)? { Ok(now) } else { Err(missing().with_answered_at(now)) }
    }
}

fn contended(call: Call<'_>) -> StoreError {
    call.refuse(StoreErrorKind::Throttled).with_detail("other processes keep changing this blob")
}
