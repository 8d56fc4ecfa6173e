use super::*;
use crate::options::Options;
use jobqueue_storage::runtime::Runtime;
use jobqueue_test_support::postgres::Postgres;

/// A next version whose programs need a new column, and after which programs of the version before continue.
const ADDS_A_COLUMN: (&str, i32) =
    ("ALTER TABLE jobqueue.queue ADD COLUMN paused boolean NOT NULL DEFAULT false", 1);
/// A version that older programs cannot use.
const RENAMES_A_TABLE: (&str, i32) = ("ALTER TABLE jobqueue.queue RENAME TO queue_of_3", 3);

fn database(schema: &str) -> Database {
    let options = Options::from_connection_string(&Postgres::shared().connection_string()).unwrap();
    Database::new(options.schema(schema).settings, Runtime::new()).unwrap()
}

async fn run(database: &Database, text: &str) -> Vec<Row> {
    database.query(Call::internal("test", database), text, &[]).await.unwrap()
}

#[tokio::test]
async fn next_version_changes_the_tables_and_programs_of_the_version_before_go_on() {
    let database = database("next_version");
    prepare(&database, true).await.unwrap();
    run(&database, "INSERT INTO jobqueue.queue (name, metadata) VALUES ('jobs', '')").await;
    let next = [MIGRATIONS, &[ADDS_A_COLUMN]].concat();
    let refused = prepare_by(&next, &database, false).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::NotPrepared, "{refused}");
    let (one, other) = tokio::join!(prepare_by(&next, &database, true), prepare_by(&next, &database, true));
    one.and(other).unwrap();
    let found = run(&database, "SELECT name FROM jobqueue.queue WHERE NOT paused").await;
    assert_eq!(found.len(), 1);
    prepare(&database, true).await.unwrap();
    prepare_by(&next, &database, false).await.unwrap();
}

#[tokio::test]
async fn version_that_older_programs_cannot_use_refuses_them() {
    let database = database("third_version");
    prepare(&database, true).await.unwrap();
    // Migrates from the first version to the third at once.
    prepare_by(&[MIGRATIONS, &[ADDS_A_COLUMN, RENAMES_A_TABLE]].concat(), &database, true).await.unwrap();
    assert_eq!(run(&database, "SELECT paused FROM jobqueue.queue_of_3").await.len(), 0);
    let refused = prepare(&database, true).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Configuration);
    assert!(refused.to_string().contains("needs programs of version 3 or newer"), "{refused}");
}
