//! Gives advice on the database: on snapshots that keep dead rows, settings that lose commits, and missing
//! indexes.

use async_trait::async_trait;
use tokio_postgres::types::Type;

use crate::database::{Call, quoted};
use crate::schema;
use crate::store::Store;
use jobqueue_storage::{Advice, StoreError, Upkeep};

const SETTINGS: &str = "SELECT name, setting FROM pg_settings
    WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum') AND setting = 'off' ORDER BY name";

/// The roles whose sessions have `synchronous_commit` off. [`SETTINGS`] reads only the value of this session.
const ROLES: &str = "SELECT DISTINCT CASE WHEN s.setrole = '0'::oid THEN 'every role' ELSE pg_catalog.format('the role %s', pg_catalog.pg_get_userbyid(s.setrole)) END
    FROM pg_db_role_setting s CROSS JOIN LATERAL pg_catalog.unnest(s.setconfig) AS value
    WHERE (s.setdatabase = '0'::oid OR s.setdatabase = (SELECT oid FROM pg_database WHERE datname = pg_catalog.current_database()))
        AND pg_catalog.lower(value) IN ('synchronous_commit=off', 'synchronous_commit=false', 'synchronous_commit=no', 'synchronous_commit=0') ORDER BY 1";

/// The oldest of the snapshots that keep rows of this database from being removed for long. A session that
/// waits between two statements may have no snapshot, and keep rows because its transaction has written.
/// Sessions of other roles hide their times, and a replication slot has none.
const HORIZON: &str = "SELECT holder, seconds, transactions FROM (
        SELECT pg_catalog.format('the session of process %s (%s)', pid, application_name) AS holder,
            extract(epoch FROM pg_catalog.clock_timestamp() - xact_start)::bigint AS seconds,
            greatest(pg_catalog.age(backend_xmin), pg_catalog.age(backend_xid)) AS transactions
        FROM pg_stat_activity WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_catalog.pg_backend_pid()
            AND coalesce(datname, pg_catalog.current_database()) = pg_catalog.current_database() AND backend_type IS DISTINCT FROM 'autovacuum worker'
        UNION ALL SELECT 'a prepared transaction', extract(epoch FROM pg_catalog.clock_timestamp() - prepared)::bigint, pg_catalog.age(transaction)
        FROM pg_prepared_xacts WHERE database = pg_catalog.current_database()
        UNION ALL SELECT pg_catalog.format('the replication slot %s', slot_name), NULL, pg_catalog.age(xmin) FROM pg_replication_slots WHERE xmin IS NOT NULL
    ) AS holders WHERE seconds >= $1 OR seconds IS NULL AND transactions >= $2 ORDER BY transactions DESC LIMIT 1";

const DEAD_ROWS: &str = "SELECT relname::text, n_dead_tup, n_live_tup FROM pg_stat_user_tables
    WHERE schemaname = $1 AND n_dead_tup > $2 AND n_dead_tup > 4 * n_live_tup ORDER BY relname";

const MISSING_INDEXES: &str = "SELECT wanted FROM pg_catalog.unnest($2) AS wanted WHERE NOT EXISTS (
        SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        WHERE c.relname = wanted AND c.relnamespace = pg_catalog.to_regnamespace($1) AND i.indisvalid
    ) ORDER BY wanted";

/// The number of dead rows from which a table is reported. A busy minute may leave fewer.
const MIN_DEAD_ROWS: i64 = 100_000;
/// The age from which a snapshot is reported: in seconds, or in transactions if its time is not known.
const MIN_SNAPSHOT_SECONDS: i64 = 600;
const MIN_SNAPSHOT_TRANSACTIONS: i32 = 1_000_000;

#[async_trait]
impl Upkeep for Store {
    async fn storage_advice(&self) -> Result<Vec<Advice>, StoreError> {
        let (database, call) = (&self.database, Call::internal("read statistics", &self.database));
        let mut all = Vec::new();
        for row in database.query(call, SETTINGS, &[]).await? {
            all.push(of_setting(call.get(&row, 0)?));
        }
        for row in database.query(call, ROLES, &[]).await? {
            all.push(of_role(call.get(&row, 0)?));
        }
        let values =
            [(&MIN_SNAPSHOT_SECONDS as _, Type::INT8), (&MIN_SNAPSHOT_TRANSACTIONS as _, Type::INT4)];
        if let Some(row) = database.query(call, HORIZON, &values).await?.first() {
            all.push(of_snapshot(call.get(row, 0)?, call.get(row, 1)?, call.get(row, 2)?));
        }
        let values = [(&database.schema() as _, Type::TEXT), (&MIN_DEAD_ROWS as _, Type::INT8)];
        for row in database.query(call, DEAD_ROWS, &values).await? {
            let (table, dead, live): (&str, i64, i64) =
                (call.get(&row, 0)?, call.get(&row, 1)?, call.get(&row, 2)?);
            all.push(Advice::warning(format!(
                "the table {table} has some {dead} dead rows and {live} others: autovacuum does not keep up, or an old snapshot holds it up"
            )));
        }
        let values =
            [(&quoted(database.schema()) as _, Type::TEXT), (&schema::indexes() as _, Type::TEXT_ARRAY)];
        for row in database.query(call, MISSING_INDEXES, &values).await? {
            let index: &str = call.get(&row, 0)?;
            all.push(Advice::warning(format!(
                "the index {index} is missing or not valid: statements read whole tables; \
                 repair it by `REINDEX INDEX CONCURRENTLY`, or create it again by `CREATE INDEX CONCURRENTLY`, since without that word every job waits"
            )));
        }
        Ok(all)
    }
}

fn of_setting(name: &str) -> Advice {
    Advice::warning(match name {
        "autovacuum" => "autovacuum is off: the tables grow without bound".to_owned(),
        name => format!("`{name}` is off: a crash of the server can lose jobs whose send was acknowledged"),
    })
}

fn of_role(roles: &str) -> Advice {
    Advice::warning(format!(
        "{roles} has `synchronous_commit` off by `ALTER ROLE` or `ALTER DATABASE`: a crash of the server can lose jobs whose send it acknowledged"
    ))
}

/// Returns advice about an old snapshot.
fn of_snapshot(holder: &str, seconds: Option<i64>, transactions: i32) -> Advice {
    let since = match seconds {
        Some(seconds) => format!("{} minutes", seconds / 60),
        None => format!("an unknown time and {transactions} transactions"),
    };
    Advice::warning(format!(
        "{holder} has held a snapshot for {since}: the rows of jobs that have ended since cannot be removed; end it if it was forgotten"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_snapshot_is_named_with_its_age() {
        let text = of_snapshot("the session of process 7 (report)", Some(3_700), 1).text;
        assert!(
            text.starts_with("the session of process 7 (report) has held a snapshot for 61 minutes"),
            "{text}"
        );
        let text = of_snapshot("a slot", None, 1_000_000).text;
        assert!(text.contains("an unknown time and 1000000 transactions"), "{text}");
    }
}
