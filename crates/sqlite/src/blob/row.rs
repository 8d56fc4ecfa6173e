//! The row of a blob without its content.

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::batch::refuse;
use crate::clock::{to_duration, to_instant, to_millis};
use crate::error::Applied;
use crate::metadata;
use jobqueue_storage::rules::lease::BlobLease;
use jobqueue_storage::{
    BlobName, BlobProperties, ContainerName, ETag, LeaseId, Metadata, Operation, StoreErrorKind,
};

/// Builds a query for [`BlobRow::read`], with the columns in the order that it reads.
macro_rules! select_blob {
    ($rest:literal) => {
        concat!(
            "SELECT id, name, etag, modified_at, metadata, length, lease_id, lease_millis, lease_until
             FROM jobqueue_blob ",
            $rest
        )
    };
}
pub(super) use select_blob;

pub(crate) struct BlobRow {
    pub(super) id: i64,
    pub(super) name: String,
    pub(super) etag: i64,
    pub(super) modified_at: i64,
    pub(super) metadata: Metadata,
    pub(super) length: u64,
    pub(super) lease: BlobLease,
}

impl BlobRow {
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            name: row.get(1)?,
            etag: row.get(2)?,
            modified_at: row.get(3)?,
            metadata: metadata::from_text(row.get_ref(4)?.as_str()?)?,
            length: u64::try_from(row.get::<_, i64>(5)?).unwrap_or(0),
            lease: read_lease(row)?,
        })
    }

    /// Finds a blob; returns `None` if the container has no blob of that name.
    pub(crate) fn find(
        connection: &Connection,
        operation: Operation,
        blob: &BlobName,
    ) -> Applied<Option<Self>> {
        let container = container(connection, operation, blob.container())?;
        Ok(connection
            .prepare_cached(select_blob!("WHERE container = ?1 AND name = ?2"))?
            .query_row(params![container, blob.name()], Self::read)
            .optional()?)
    }

    pub(super) fn require(connection: &Connection, operation: Operation, blob: &BlobName) -> Applied<Self> {
        Self::find(connection, operation, blob)?
            .ok_or_else(|| refuse(StoreErrorKind::BlobNotFound, operation, blob))
    }

    pub(super) fn properties(&self, now: i64) -> BlobProperties {
        BlobProperties::new(self.length, tag(self.etag), to_instant(self.modified_at))
            .with_metadata(self.metadata.clone())
            .with_active_lease(self.lease.is_active(to_instant(now)))
    }
}

pub(super) fn tag(number: i64) -> ETag {
    ETag::new(format!("\"0x{number:016X}\""))
}

/// The lease columns of a row: `lease_id`, `lease_millis`, `lease_until`. `lease_breaking` is always 0.
pub(super) type LeaseColumns = (Option<String>, Option<i64>, Option<i64>);

pub(super) fn write_lease(lease: &BlobLease) -> LeaseColumns {
    match lease {
        BlobLease::Available => (None, None, None),
        BlobLease::Held { id, duration, until } => {
            (Some(id.expose()), i64::try_from(duration.as_millis()).ok(), Some(to_millis(*until)))
        }
    }
}

fn read_lease(row: &Row<'_>) -> rusqlite::Result<BlobLease> {
    let (id, millis, until): LeaseColumns = (row.get(6)?, row.get(7)?, row.get(8)?);
    let Some(id) = id else { return Ok(BlobLease::Available) };
    let malformed = || rusqlite::Error::InvalidColumnType(6, "lease_id".to_owned(), Type::Text);
    let (Some(id), Some(millis @ 1..), Some(until)) = (LeaseId::parse(&id), millis, until) else {
        return Err(malformed());
    };
    Ok(BlobLease::Held { id, duration: to_duration(millis), until: to_instant(until) })
}

/// Returns the row id of a container.
pub(super) fn container(connection: &Connection, operation: Operation, name: &ContainerName) -> Applied<i64> {
    connection
        .prepare_cached("SELECT id FROM jobqueue_container WHERE name = ?1")?
        .query_row([name.as_str()], |row| row.get(0))
        .optional()?
        .ok_or_else(|| refuse(StoreErrorKind::ContainerNotFound, operation, name))
}
