//! Shows how SQLite executes a statement, for tests.

use rusqlite::types::Null;
use rusqlite::{Connection, params_from_iter};

use super::schema::MIGRATIONS;

/// Returns the query plan of a statement in an empty file, without statistics, as in the files of users.
pub(super) fn of(sql: &str) -> String {
    let connection = Connection::open_in_memory().unwrap();
    connection.execute_batch(&MIGRATIONS.concat()).unwrap();
    let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let parameters = vec![Null; plan.parameter_count()];
    let steps = plan.query_map(params_from_iter(parameters), |row| row.get::<_, String>(3)).unwrap();
    steps.map(Result::unwrap).collect::<Vec<_>>().join("; ")
}

mod tests {
    use super::of;
    use crate::blob::LIST;
    use crate::journal;
    use crate::queue::{
        ALL_EXPIRED, BY_TIME, EXPIRED, FIRST_BACKING_OFF, FIRST_HELD_UP, HIDDEN, HIDDEN_EXPIRED, NAMES,
        RUNNING, WAITING,
    };
    use crate::watch::QUEUE_STATE;

    /// The statements behind the pages of operators. A scan or a sort of the messages would slow down with
    /// every message.
    #[test]
    fn pages_of_operators_scan_no_messages_and_sort_nothing() {
        for (sql, index) in [
            (BY_TIME, "COVERING INDEX jobqueue_message_visible (queue=? AND visible_at<?)"),
            (EXPIRED, "INDEX jobqueue_message_expiry (expires_at<?)"),
            (ALL_EXPIRED, "COVERING INDEX jobqueue_message_expiry (expires_at<?)"),
            (HIDDEN, "COVERING INDEX jobqueue_message_visible (queue=? AND visible_at>? AND visible_at<?)"),
            (
                FIRST_BACKING_OFF,
                "COVERING INDEX jobqueue_message_visible (queue=? AND visible_at>? AND visible_at<?)",
            ),
            (HIDDEN_EXPIRED, "INDEX jobqueue_message_expiry (expires_at<?)"),
            (RUNNING, "SEARCH l USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
            (QUEUE_STATE, "INDEX jobqueue_message_visible (queue=? AND visible_at<?)"),
            (WAITING, "COVERING INDEX jobqueue_message_group (queue=? AND waiting=? AND group_name>?)"),
            (FIRST_HELD_UP, "INDEX jobqueue_message_group (queue=? AND waiting=? AND group_name>?)"),
            (NAMES, "COVERING INDEX sqlite_autoindex_jobqueue_queue_1 (name>?)"),
            (LIST, "INDEX jobqueue_blob_name (container=? AND name>? AND name<?)"),
            (journal::ALL, "PRIMARY KEY (ended>? AND ended<?)"),
            (journal::BY_ID, "INDEX jobqueue_journal_id (id=? AND ended>? AND ended<?)"),
            (journal::BY_KEY, "INDEX jobqueue_journal_key (key=? AND ended>? AND ended<?)"),
            (journal::FAILURES, "INDEX jobqueue_journal_failure (ended>? AND ended<?)"),
        ] {
            let plan = of(sql);
            assert!(plan.contains(index), "{sql}: {plan}");
            assert!(!plan.contains("SCAN") && !plan.contains("TEMP B-TREE"), "{sql}: {plan}");
        }
    }
}
