//! The row of a blob, without its content.

use std::time::SystemTime;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::database::{Call, Database};
use crate::metadata;
use crate::time::{from_instant, to_duration, to_instant, to_millis};
use jobqueue_storage::rules::lease::BlobLease;
use jobqueue_storage::{BlobName, BlobProperties, ETag, LeaseId, Metadata, StoreError, StoreErrorKind};

/// Builds the list of columns that [`BlobRow::read`] reads, from column 0 on.
macro_rules! blob_columns {
    () => {
        "b.id, b.name, b.revision, b.etag, b.modified_at, b.length, b.lease_millis, b.lease_until, b.lease_id, b.metadata"
    };
}
pub(super) use blob_columns;

/// Builds the `FROM` clause of a statement about blob $2 of container $1. It gives a row if the container
/// exists, with the blob `b` or `NULL`s. `OFFSET` keeps the planner from a join, which could read all of the
/// index where `ANALYZE` saw an empty table.
macro_rules! place {
    () => {
        " FROM jobqueue.container c LEFT JOIN LATERAL (SELECT * FROM jobqueue.blob WHERE container = c.id AND name = $2 OFFSET 0) b ON true
        WHERE c.name = $1"
    };
}
pub(super) use place;

const FIND: &str = concat!("SELECT ", blob_columns!(), ", jobqueue.now()", place!());

/// The columns of a blob, except its content.
pub(super) struct BlobRow {
    pub(super) id: i64,
    pub(super) name: String,
    pub(super) revision: i64,
    pub(super) etag: ETag,
    pub(super) modified_at: i64,
    pub(super) length: u64,
    pub(super) lease: BlobLease,
    pub(super) metadata: Metadata,
}

/// The result of a search for a blob by its name.
pub(super) struct BlobLookup {
    pub(super) blob: Option<BlobRow>,
    /// The server's time.
    pub(super) now: SystemTime,
}

impl BlobLookup {
    /// Looks up a blob. The container must exist, the blob need not.
    ///
    /// # Errors
    /// `ContainerNotFound`.
    pub(super) async fn find(
        database: &Database,
        call: Call<'_>,
        blob: &BlobName,
    ) -> Result<Self, StoreError> {
        let values = [(&blob.container().as_str() as _, Type::TEXT), (&blob.name() as _, Type::TEXT)];
        let rows = database.query(call.reading(), FIND, &values).await?;
        let row = rows.first().ok_or_else(|| call.refuse(StoreErrorKind::ContainerNotFound))?;
        let is_there = call.get::<Option<i64>>(row, 0)?.is_some();
        let blob = if is_there { Some(BlobRow::read(call, row)?) } else { None };
        Ok(Self { blob, now: to_instant(call.get(row, 10)?) })
    }

    /// Returns the blob, which must exist.
    ///
    /// # Errors
    /// `BlobNotFound`.
    pub(super) fn require(&self, call: Call<'_>) -> Result<&BlobRow, StoreError> {
        self.blob.as_ref().ok_or_else(|| call.refuse(StoreErrorKind::BlobNotFound))
    }
}

impl BlobRow {
    pub(super) fn read(call: Call<'_>, row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            id: call.get(row, 0)?,
            name: call.get(row, 1)?,
            revision: call.get(row, 2)?,
            etag: tag(call.get(row, 3)?),
            modified_at: call.get(row, 4)?,
            length: u64::try_from(call.get::<i64>(row, 5)?).unwrap_or(0),
            lease: read_lease(call, row)?,
            metadata: metadata::from_text(call, call.get(row, 9)?)?,
        })
    }

    pub(super) fn properties(&self, now: SystemTime) -> BlobProperties {
        BlobProperties::new(self.length, self.etag.clone(), to_instant(self.modified_at))
            .with_metadata(self.metadata.clone())
            .with_active_lease(self.lease.is_active(now))
    }
}

pub(super) fn tag(number: i64) -> ETag {
    ETag::new(format!("\"0x{number:016X}\""))
}

pub(super) struct LeaseColumns {
    pub(super) millis: Option<i64>,
    pub(super) until: Option<i64>,
    pub(super) id: Option<String>,
}

impl LeaseColumns {
    pub(super) fn of(lease: &BlobLease) -> Self {
        match lease {
            BlobLease::Available => Self { millis: None, until: None, id: None },
            BlobLease::Held { id, duration, until } => Self {
                millis: Some(to_millis(*duration)),
                until: Some(from_instant(*until)),
                id: Some(id.expose()),
            },
        }
    }
}

fn read_lease(call: Call<'_>, row: &Row) -> Result<BlobLease, StoreError> {
    let (millis, until): (Option<i64>, Option<i64>) = (call.get(row, 6)?, call.get(row, 7)?);
    let Some(id) = call.get::<Option<&str>>(row, 8)? else { return Ok(BlobLease::Available) };
    let (Some(id), Some(millis @ 1..), Some(until)) = (LeaseId::parse(id), millis, until) else {
        return Err(call.refuse(StoreErrorKind::Corrupt).with_detail("a lease of a blob is malformed"));
    };
    Ok(BlobLease::Held { id, duration: to_duration(millis), until: to_instant(until) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_server::{FakeServer, error_response};
    use jobqueue_storage::Operation;

    /// If the lookup of the blob fails, the change has written nothing.
    #[tokio::test]
    async fn lost_answer_of_the_look_before_a_change_is_certain() {
        let server = FakeServer::start(|_| error_response("FATAL", "57P01")).await;
        let database = Database::new(server.settings(), Default::default()).unwrap();
        let blob = BlobName::new("a-container".parse().unwrap(), "name").unwrap();
        let found = BlobLookup::find(&database, Call::new(Operation::PutBlob, &blob), &blob).await;
        let error = found.err().unwrap();
        assert_eq!((error.kind(), error.is_ambiguous()), (StoreErrorKind::Unavailable, false), "{error}");
    }
}
