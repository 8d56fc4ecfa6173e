//! The advice of the storage to operators about its database.

use jobqueue::storage::Storage;

use crate::{connect, own_schema};
use jobqueue_test_support::postgres::Postgres;

async fn advice(storage: &Storage) -> Vec<String> {
    let all = storage.queues().storage_advice().await.unwrap();
    all.into_iter().map(|advice| advice.text).collect()
}

#[tokio::test]
async fn settings_that_lose_commits_are_named() {
    let (options, _) = own_schema();
    let storage = Storage::open(options).await.unwrap();
    let found = advice(&storage).await;
    for setting in ["`fsync`", "`full_page_writes`", "`synchronous_commit`"] {
        assert_eq!(found.iter().filter(|text| text.starts_with(setting)).count(), 1, "{setting}: {found:?}");
    }
    assert!(!found.iter().any(|text| text.contains("index")), "{found:?}");
}

/// The session of an operator has another value than that of the workers' role.
#[tokio::test]
async fn role_whose_commits_do_not_wait_for_the_disk_is_named() {
    let (options, schema) = own_schema();
    let storage = Storage::open(options).await.unwrap();
    let client = connect(Postgres::shared()).await;
    let role = format!("hasty_{schema}");
    let is_named =
        async || advice(&storage).await.iter().any(|text| text.starts_with(&format!("the role {role} has")));
    client
        .batch_execute(&format!("CREATE ROLE {role}; ALTER ROLE {role} SET synchronous_commit = on"))
        .await
        .unwrap();
    assert!(!is_named().await);
    for value in ["off", "'FALSE'"] {
        client.batch_execute(&format!("ALTER ROLE {role} SET synchronous_commit = {value}")).await.unwrap();
        assert!(is_named().await, "{value}");
    }
    client.batch_execute(&format!("DROP ROLE {role}")).await.unwrap();
}

/// Each index of the schema is looked for, except those without which a constraint would not exist.
#[tokio::test]
async fn missing_index_is_named() {
    let (options, schema) = own_schema();
    let storage = Storage::open(options).await.unwrap();
    let client = connect(Postgres::shared()).await;
    let indexes = "SELECT c.relname::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        WHERE c.relnamespace = to_regnamespace($1)
            AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = c.oid)";
    let indexes = client.query(indexes, &[&schema]).await.unwrap();
    assert!(!indexes.is_empty());
    for row in indexes {
        let index: String = row.get(0);
        let rename = format!("ALTER INDEX {schema}.{index} RENAME TO gone");
        client.batch_execute(&rename).await.unwrap();
        let found = advice(&storage).await;
        assert!(
            found.iter().any(|text| text.starts_with(&format!("the index {index} is missing"))),
            "{index}: {found:?}"
        );
        client.batch_execute(&format!("ALTER INDEX {schema}.gone RENAME TO {index}")).await.unwrap();
    }
}

/// Rows that a snapshot keeps from being removed are counted when their session has reported them.
#[tokio::test]
async fn dead_rows_are_named() {
    let (options, schema) = own_schema();
    let storage = Storage::open(options).await.unwrap();
    let client = connect(Postgres::shared()).await;
    let churn = format!(
        "ALTER TABLE {schema}.queue SET (autovacuum_enabled = off);
         INSERT INTO {schema}.queue (name, metadata) SELECT 'q' || n, '[]' FROM generate_series(1, 100001) AS n;
         DELETE FROM {schema}.queue"
    );
    client.batch_execute(&churn).await.unwrap();
    drop(client);
    let named = async {
        while !advice(&storage)
            .await
            .iter()
            .any(|text| text.starts_with("the table queue has some 100001 dead rows"))
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), named).await.expect("dead rows");
}
