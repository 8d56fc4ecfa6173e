//! Writes blobs, their leases and their containers.

use std::time::SystemTime;

use bytes::Bytes;
use tokio_postgres::types::Type;

use super::row::{BlobRow, LeaseColumns, Place, tag};
use super::size::further_time;
use crate::database::{Call, Parameter};
use crate::metadata;
use crate::store::Store;
use jobqueue_storage::rules::lease::BlobLease;
use jobqueue_storage::{
    BlobName, BlobProperties, Condition, ContainerName, LeaseId, Operation, PutBlob, StoreError,
    StoreErrorKind,
};

/// The attempts of a change while others change the same blob: one of them succeeds each time.
const ATTEMPTS: usize = 100;

/// Creates a container. An attempt that finds one uses no number of the sequence, whose numbers have 32 bits.
pub(crate) const CREATE_CONTAINER: &str = "INSERT INTO jobqueue.container (name)
    SELECT $1 WHERE NOT EXISTS (SELECT FROM jobqueue.container WHERE name = $1) ON CONFLICT (name) DO NOTHING";

/// The blobs are unreachable at once, and are removed bit by bit.
const DELETE_CONTAINER: &str = "WITH gone AS (DELETE FROM jobqueue.container WHERE name = $1 RETURNING id)
    INSERT INTO jobqueue.garbage (kind, owner, since) SELECT 'container', id, jobqueue.now() FROM gone RETURNING owner";

/// Creates a blob, unless there is one of this name.
pub(crate) const CREATE: &str =
    "INSERT INTO jobqueue.blob (container, name, metadata, length, content, revision, etag, modified_at)
    SELECT c.id, $2, $3, length($4), $4, r.next, r.next, jobqueue.now()
    FROM jobqueue.container c, (SELECT nextval('jobqueue.revision') AS next) AS r WHERE c.name = $1
    ON CONFLICT (container, name) DO NOTHING RETURNING etag, modified_at";

/// Replaces a blob that has not changed. A lease of it has neither begun nor ended: $3 says whether there is one.
const REPLACE: &str = "UPDATE jobqueue.blob SET lease_millis = $4, lease_until = $5, lease_id = $6, metadata = $7, length = length($8),
        content = $8, revision = r.next, etag = r.next, modified_at = jobqueue.now()
    FROM (SELECT nextval('jobqueue.revision') AS next) AS r
    WHERE id = $1 AND revision = $2 AND (coalesce(lease_until, 0) > jobqueue.now()) = $3 RETURNING etag, modified_at";

const CHANGE_LEASE: &str = "UPDATE jobqueue.blob SET lease_millis = $4, lease_until = $5, lease_id = $6, revision = nextval('jobqueue.revision')
    WHERE id = $1 AND revision = $2 AND (coalesce(lease_until, 0) > jobqueue.now()) = $3 RETURNING id";

const DELETE: &str = "DELETE FROM jobqueue.blob
    WHERE id = $1 AND revision = $2 AND (coalesce(lease_until, 0) > jobqueue.now()) = $3 RETURNING id";

/// A blob to write.
pub(super) struct Written<'b> {
    pub(super) blob: &'b BlobName,
    pub(super) data: Bytes,
    pub(super) options: PutBlob,
}

impl Store {
    /// Writes a whole blob. The caller has checked the arguments.
    pub(super) async fn write(&self, new: &Written<'_>) -> Result<BlobProperties, StoreError> {
        let call = Call::new(Operation::PutBlob, new.blob);
        let creates = new.options.condition == Condition::IfAbsent && new.options.lease.is_none();
        if creates && let Some(created) = self.create_blob(new).await? {
            return Ok(created);
        }
        for _ in 0..ATTEMPTS {
            let place = Place::find(&self.database, call, new.blob).await?;
            let present = place.blob.as_ref();
            let refused = |kind| call.refuse(kind);
            new.options.condition.check(present.map(|row| &row.etag)).map_err(refused)?;
            let lease = present.map_or(BlobLease::Available, |row| row.lease);
            let lease = lease.write(place.now, new.options.lease).map_err(refused)?;
            let written = match present {
                None => self.create_blob(new).await?,
                Some(row) => self.replace_blob(new, row, lease, place.now).await?,
            };
            if let Some(written) = written {
                return Ok(written);
            }
        }
        Err(contended(call))
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

    /// Runs a statement that writes a blob. Returns `None` if the row was not as it was found.
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
        let modified = crate::time::to_instant(call.get(row, 1)?);
        let properties = BlobProperties::new(length, tag(call.get(row, 0)?), modified);
        Ok(Some(properties.with_metadata(new.options.metadata.clone()).with_active_lease(is_leased)))
    }

    pub(super) async fn remove_blob(
        &self,
        blob: &BlobName,
        lease: Option<LeaseId>,
    ) -> Result<(), StoreError> {
        let call = Call::new(Operation::DeleteBlob, blob);
        for _ in 0..ATTEMPTS {
            let place = Place::find(&self.database, call, blob).await?;
            let row = place.require(call)?;
            row.lease.write(place.now, lease).map_err(|kind| call.refuse(kind))?;
            let was_active = row.lease.is_active(place.now);
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

    /// Moves a blob's lease by `rule`. Tag and content do not change.
    pub(super) async fn change_lease(
        &self,
        operation: Operation,
        blob: &BlobName,
        rule: impl Fn(&BlobLease, SystemTime) -> Result<BlobLease, StoreErrorKind> + Send + Sync,
    ) -> Result<(), StoreError> {
        let call = Call::new(operation, blob);
        for _ in 0..ATTEMPTS {
            let place = Place::find(&self.database, call, blob).await?;
            let row = place.require(call)?;
            let columns = LeaseColumns::of(&rule(&row.lease, place.now).map_err(|kind| call.refuse(kind))?);
            let was_active = row.lease.is_active(place.now);
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

    pub(super) async fn make_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        let call = Call::new(Operation::CreateContainer, container);
        self.database.query(call, CREATE_CONTAINER, &[(&container.as_str(), Type::TEXT)]).await.map(drop)
    }

    pub(super) async fn remove_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        let call = Call::new(Operation::DeleteContainer, container);
        let rows = self.database.query(call, DELETE_CONTAINER, &[(&container.as_str(), Type::TEXT)]).await?;
        rows.first().map(drop).ok_or_else(|| call.refuse(StoreErrorKind::ContainerNotFound))
    }
}

fn contended(call: Call<'_>) -> StoreError {
    call.refuse(StoreErrorKind::Throttled).with_detail("other processes keep changing this blob")
}
