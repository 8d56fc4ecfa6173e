//! The tables, and their version.
//!
//! A new version of the schema is a file `vN.sql` that changes version N−1. It is added to [`MIGRATIONS`]
//! together with the oldest program version that can use the tables afterwards. So a deployment can run
//! programs of two versions side by side: the newer program migrates the tables, and the older program
//! continues. If older programs cannot continue, the migration also renames the tables that they use, so that
//! their next statement fails and says why.
//!
//! A new column of messages also changes functions, whose new texts belong into the file of the version:
//! `put_row`, `put_rows` and `put` write messages, `claim` and `get` return them. All other statements are in
//! `queue/`.
//!
//! - A function whose arguments or result change gets a new name: `CREATE OR REPLACE` cannot change the
//!   result, and `DROP FUNCTION` breaks programs of the older version.
//! - `CREATE OR REPLACE` drops the settings of a function: repeat `SET search_path = pg_catalog, pg_temp`.

use tokio_postgres::types::Type;
use tokio_postgres::{Row, Transaction};

use crate::database::{Call, Database, give_back, quoted};
use crate::error::ISOLATION;
use jobqueue_storage::log::{info, warn};
use jobqueue_storage::{StoreError, StoreErrorKind};

/// The migrations, in order. Each is the SQL that changes the schema from the version before, and the oldest
/// program version that can use the result. The number of migrations is the version of the program.
type Migrations = [(&'static str, i32)];
const MIGRATIONS: &Migrations = &[(include_str!("v1.sql"), 1)];

const DATABASE_FACTS: &str =
    "SELECT pg_catalog.to_regclass('jobqueue.schema_version') IS NOT NULL, pg_catalog.current_setting('server_encoding') = 'UTF8',
    pg_catalog.current_setting('server_version_num')::int, pg_catalog.current_setting('transaction_isolation') = 'read committed',
    pg_catalog.current_setting('synchronous_commit') = 'off'";

const READ_VERSION: &str = "SELECT version, oldest_program FROM jobqueue.schema_version";

const WRITE_VERSION: &str = "INSERT INTO jobqueue.schema_version (version, oldest_program) VALUES ($1, $2)
    ON CONFLICT (only_row) DO UPDATE SET version = $1, oldest_program = $2";

const FIND_SCHEMA: &str = "SELECT WHERE pg_catalog.to_regnamespace($1) IS NOT NULL";

/// The oldest supported server. It has `pg_current_snapshot` and 64-bit transaction ids.
const OLDEST_SERVER: i32 = 130_000;

/// Returns the indexes that the migrations create, except the indexes of constraints. Indexes that a later
/// migration drops must be left out.
pub(crate) fn indexes() -> Vec<&'static str> {
    let lines = MIGRATIONS.iter().flat_map(|(text, _)| text.lines());
    let created = lines.filter_map(|line| {
        line.strip_prefix("CREATE INDEX ").or_else(|| line.strip_prefix("CREATE UNIQUE INDEX "))
    });
    created.filter_map(|rest| rest.split(' ').next()).collect()
}

/// Migrates the tables to the version of this program, unless they already have that version or a newer one
/// that this program can use. If several processes try at once, one of them migrates.
///
/// # Errors
/// `Configuration` for a newer schema that this program cannot use, a database that is not encoded in UTF-8,
/// a server that is too old, and sessions whose transactions are not `read committed`; `NotPrepared` for
/// tables that are missing or too old and must not be changed; `Timeout` while another process migrates.
pub(crate) async fn prepare(database: &Database, may_migrate: bool) -> Result<(), StoreError> {
    prepare_by(MIGRATIONS, database, may_migrate).await
}

async fn prepare_by(
    migrations: &Migrations,
    database: &Database,
    may_migrate: bool,
) -> Result<(), StoreError> {
    let call = Call::internal("open storage", database);
    let found = database.query(call, DATABASE_FACTS, &[]).await?;
    let found = found.first().ok_or_else(|| call.refuse(StoreErrorKind::Protocol))?;
    let (is_there, is_utf8, server): (bool, bool, i32) =
        (call.get(found, 0)?, call.get(found, 1)?, call.get(found, 2)?);
    if server < OLDEST_SERVER {
        return Err(refuse(call, "the server is older than PostgreSQL 13; use a newer one".to_owned()));
    }
    if !is_utf8 {
        let advice = "the database is not encoded in UTF-8; create one with `ENCODING 'UTF8'`";
        return Err(refuse(call, advice.to_owned()));
    }
    if !call.get::<bool>(found, 3)? {
        return Err(refuse(call, ISOLATION.to_owned()));
    }
    // This is the value for the session, which a role or a connection string may have set.
    if call.get::<bool>(found, 4)? {
        warn!(
            storage = database.settings().description,
            "`synchronous_commit` is off for this connection: a crash of the server can lose jobs whose send was acknowledged; set it to `on` for \
             the role, the database or in the connection string"
        );
    }
    if is_there
        && let Some(row) = database.query(call, READ_VERSION, &[]).await?.first()
        && SchemaState::read(call, row)?.is_usable(migrations, call)?
    {
        return Ok(());
    }
    if !may_migrate {
        let advice = format!(
            "the schema {} has no tables of version {}; a program of this version that opens the storage makes them",
            database.schema(),
            migrations.len()
        );
        return Err(call.refuse(StoreErrorKind::NotPrepared).with_detail(advice));
    }
    migrate(migrations, database, call).await
}

async fn migrate(migrations: &Migrations, database: &Database, call: Call<'_>) -> Result<(), StoreError> {
    let mut client = database.client(call).await?;
    let transaction = client.transaction().await.map_err(|error| call.failed(error))?;
    let found = lock(database, call, &transaction).await?;
    if !found.is_usable(migrations, call)? {
        run_steps(migrations, database, &transaction, found).await.map_err(|error| call.failed(error))?;
        transaction.commit().await.map_err(|error| call.failed(error))?;
        info!(
            from = found.version,
            to = migrations.len(),
            schema = database.schema(),
            "the tables of the database were migrated"
        );
    } else {
        transaction.rollback().await.map_err(|error| call.failed(error))?;
    }
    give_back(client);
    Ok(())
}

/// The state of the tables. Version 0 means that there are none.
#[derive(Clone, Copy, Default)]
struct SchemaState {
    version: i32,
    oldest_program: i32,
}

impl SchemaState {
    fn read(call: Call<'_>, row: &Row) -> Result<Self, StoreError> {
        Ok(Self { version: call.get(row, 0)?, oldest_program: call.get(row, 1)? })
    }

    /// Returns whether this program can use the tables without a migration.
    fn is_usable(self, migrations: &Migrations, call: Call<'_>) -> Result<bool, StoreError> {
        let (Self { version, oldest_program }, own) = (self, migrations.len() as i32);
        if oldest_program > own {
            let advice = format!(
                "a newer program has brought the tables to version {version}, which needs programs of version {oldest_program} or newer; \
                 this one is of version {own}: use a newer version of jobqueue"
            );
            return Err(refuse(call, advice));
        }
        Ok(version >= own)
    }
}

/// Waits until no other process migrates, and then reads the state of the tables: if several processes try at
/// once, only the first one finds work.
async fn lock(
    database: &Database,
    call: Call<'_>,
    transaction: &Transaction<'_>,
) -> Result<SchemaState, StoreError> {
    let (schema, limit) = (quoted(database.schema()), database.settings().timeout.as_millis());
    // The settings and the lock belong to this transaction, because a pooler may not keep a session. With
    // this path, a migration calls nothing of other schemas.
    let lock = format!(
        "SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL lock_timeout = {}; SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('jobqueue schema {}', 0))",
        limit.clamp(1, 86_400_000),
        database.schema()
    );
    let done = async {
        transaction.batch_execute(&lock).await?;
        // Without the privilege to create schemas, `IF NOT EXISTS` would fail even if the schema exists.
        if transaction.query_typed(FIND_SCHEMA, &[(&schema, Type::TEXT)]).await?.is_empty() {
            transaction.batch_execute(&format!("CREATE SCHEMA {schema}")).await?;
        }
        let table = transaction.query_typed(&database.sql(DATABASE_FACTS), &[]).await?;
        if !table.first().is_some_and(|row| row.try_get(0).unwrap_or(false)) {
            return Ok(Vec::new());
        }
        transaction.query_typed(&database.sql(READ_VERSION), &[]).await
    };
    let rows = done.await.map_err(|error| call.failed(error))?;
    rows.first().map_or(Ok(SchemaState::default()), |row| SchemaState::read(call, row))
}

async fn run_steps(
    migrations: &Migrations,
    database: &Database,
    transaction: &Transaction<'_>,
    from: SchemaState,
) -> Result<(), tokio_postgres::Error> {
    let (version, mut oldest) = (migrations.len() as i32, from.oldest_program);
    for (step, needs) in migrations.iter().skip(usize::try_from(from.version).unwrap_or(0)) {
        transaction.batch_execute(&database.sql(step)).await?;
        oldest = oldest.max(*needs);
    }
    let values = [(&version as _, Type::INT4), (&oldest as _, Type::INT4)];
    transaction.execute_typed(&database.sql(WRITE_VERSION), &values).await.map(drop)
}

fn refuse(call: Call<'_>, advice: String) -> StoreError {
    call.refuse(StoreErrorKind::Configuration).with_detail(advice)
}

#[cfg(test)]
mod tests;
