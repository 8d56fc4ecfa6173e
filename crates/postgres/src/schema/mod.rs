//! The tables, and their version.
//!
//! A new version of the schema is a file `vN.sql` that changes version N−1, added to [`MIGRATIONS`] with the oldest program that can use the
//! tables afterwards. So a deployment may run programs of two versions side by side: the newer one migrates, and the older one goes on. Where
//! an older program cannot go on, the migration also renames the tables that it uses, so that its next statement fails and says why.

use tokio_postgres::types::Type;

use crate::database::{Call, Database};
use crate::error::ISOLATION;
use jobqueue_storage::log::info;
use jobqueue_storage::{Operation, StoreError, StoreErrorKind};

/// The migrations. Each changes the schema from the version before to its own, and names the oldest program that can use it.
const MIGRATIONS: &[(&str, i32)] = &[(include_str!("v1.sql"), 1)];

/// The version that this program makes and knows.
const VERSION: i32 = MIGRATIONS.len() as i32;

const TABLE: &str =
    "SELECT to_regclass('jobqueue.schema_version') IS NOT NULL, current_setting('server_encoding') = 'UTF8',
    current_setting('server_version_num')::int, current_setting('transaction_isolation') = 'read committed'";

const READ: &str = "SELECT version, oldest_program FROM jobqueue.schema_version";

const WRITE: &str = "INSERT INTO jobqueue.schema_version (version, oldest_program) VALUES ($1, $2)
    ON CONFLICT (only_row) DO UPDATE SET version = $1, oldest_program = $2";

/// The oldest server: it has `pg_current_snapshot` and 64-bit numbers of transactions.
const OLDEST_SERVER: i32 = 130_000;

/// Brings the tables to the version of this program, unless they have it or a newer one that this program can use. Of several processes that
/// try at once, one does it.
///
/// # Errors
/// `Configuration` for a newer schema that refuses this program, for a database that is not in UTF-8, and for an old server.
pub(crate) async fn prepare(database: &Database) -> Result<(), StoreError> {
    let call = Call::of_database(Operation::CreateQueue, database);
    let found = database.query(call, TABLE, &[]).await?;
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
    if is_there {
        let rows = database.query(call, READ, &[]).await?;
        if let Some(row) = rows.first()
            && is_usable(call, call.get(row, 0)?, call.get(row, 1)?)?
        {
            return Ok(());
        }
    }
    migrate(database, call).await
}

/// Returns whether the tables need no migration.
fn is_usable(call: Call<'_>, version: i32, oldest_program: i32) -> Result<bool, StoreError> {
    if oldest_program > VERSION {
        let advice = format!(
            "a newer program has brought the tables to version {version}, which needs programs of version {oldest_program} or newer; \
             this one is of version {VERSION}: use a newer version of jobqueue"
        );
        return Err(refuse(call, advice));
    }
    Ok(version >= VERSION)
}

async fn migrate(database: &Database, call: Call<'_>) -> Result<(), StoreError> {
    let mut client = database.client(call).await?;
    let transaction = client.transaction().await.map_err(|error| call.failed(error))?;
    let run = async |text: &str| transaction.batch_execute(&database.sql(text)).await;
    // Held until the end of the transaction, so that it needs no session of its own behind a pooler.
    let lock =
        format!("SELECT pg_advisory_xact_lock(hashtextextended('jobqueue schema {}', 0))", database.schema());
    let done = async {
        run(&lock).await?;
        run("SET LOCAL lock_timeout = '30s'").await?;
        run(&format!("CREATE SCHEMA IF NOT EXISTS {}", database.schema())).await
    };
    done.await.map_err(|error| call.failed(error))?;
    let rows =
        transaction.query_typed(&database.sql(TABLE), &[]).await.map_err(|error| call.failed(error))?;
    let mut version = 0;
    if rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)) {
        let rows =
            transaction.query_typed(&database.sql(READ), &[]).await.map_err(|error| call.failed(error))?;
        if let Some(row) = rows.first() {
            version = call.get(row, 0)?;
            if is_usable(call, version, call.get(row, 1)?)? {
                return Ok(());
            }
        }
    }
    let from = usize::try_from(version).unwrap_or(0);
    for (step, _) in MIGRATIONS.iter().skip(from) {
        run(step).await.map_err(|error| call.failed(error))?;
    }
    let oldest = MIGRATIONS.last().map_or(VERSION, |(_, oldest)| *oldest);
    let (write, values) = (database.sql(WRITE), [(&VERSION as _, Type::INT4), (&oldest as _, Type::INT4)]);
    transaction.execute_typed(&write, &values).await.map_err(|error| call.failed(error))?;
    transaction.commit().await.map_err(|error| call.failed(error))?;
    info!(
        from = version,
        to = VERSION,
        schema = database.schema(),
        "the tables of the database were migrated"
    );
    Ok(())
}

fn refuse(call: Call<'_>, advice: String) -> StoreError {
    call.refuse(StoreErrorKind::Configuration).with_detail(advice)
}
