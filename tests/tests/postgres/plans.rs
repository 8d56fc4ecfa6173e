//! Statements read no more than they need, whatever the planner believed of a table when it was empty.

use std::time::Duration;

use jobqueue::postgres::tokio_postgres::{Client, IsolationLevel};
use jobqueue::storage::{ExpiredReceipt, MessageState, PutMessage, Storage};

use crate::locks::put_row;
use crate::{connect, get, named, of_group, texts, within};
use jobqueue_test_support::postgres::Postgres;

const MANY: i64 = 5_000;

/// Returns a statistic of a schema. Sessions report what they have read when they end.
async fn read_by_ended_sessions(schema: &str, statistic: &str) -> i64 {
    let client = connect(Postgres::shared()).await;
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
    within(async {
        while client.query_one(sessions, &[&schema]).await.unwrap().get::<_, i64>(0) > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let statistic = statistic.replace("SCHEMA", schema);
    client.query_one(&statistic, &[]).await.unwrap().get(0)
}

/// Fills the queue behind the storage's back.
async fn fill(client: &Client, schema: &str, of_each: &str) {
    let fill = format!(
        "INSERT INTO {schema}.message (queue, visible_at, expires_at, inserted_at, receipt, text)
         SELECT {of_each}, 0, '', '' FROM generate_series(1, {MANY}) AS n; ANALYZE {schema}.message"
    );
    client.batch_execute(&fill).await.unwrap();
}

/// A connection that has planned its statements while the table was empty and vacuumed.
#[tokio::test]
async fn sends_into_groups_read_no_whole_table() {
    let (storage, queue, schema) = named().await;
    let client = connect(Postgres::shared()).await;
    client.batch_execute(&format!("VACUUM ANALYZE {schema}.message")).await.unwrap();
    for list in 0..6 {
        let messages = (0..500).map(|number| of_group("text", &format!("{list}.{number}"))).collect();
        for put in storage.queues().put_all(&queue, messages).await {
            put.unwrap();
        }
    }
    drop(storage);
    let scanned =
        "SELECT seq_tup_read FROM pg_stat_user_tables WHERE schemaname = 'SCHEMA' AND relname = 'message'";
    let scanned = read_by_ended_sessions(&schema, scanned).await;
    assert!(scanned < 10_000, "{scanned} rows were read for 3,000 messages");
}

/// The statistics say that there is no message, while a snapshot keeps many that have waited, or have been
/// the first of their group.
#[tokio::test]
async fn deletions_of_first_messages_read_no_other_group() {
    let (storage, queue, schema) = named().await;
    let [mut open, client] = [connect(Postgres::shared()).await, connect(Postgres::shared()).await];
    let snapshot =
        open.build_transaction().isolation_level(IsolationLevel::RepeatableRead).start().await.unwrap();
    snapshot.batch_execute("SELECT count(*) FROM pg_class").await.unwrap();
    let waited = format!(
        "INSERT INTO {schema}.message (queue, visible_at, inserted_at, waiting, receipt, group_hash, turn, text)
         SELECT 1, 1::bigint << 50, 0, n % 2 = 0, '', sha256(n::text::bytea), n, '' FROM generate_series(1, 2 * {MANY}) AS n"
    );
    client.batch_execute(&waited).await.unwrap();
    let others = format!(
        "DELETE FROM {schema}.message WHERE waiting; DELETE FROM {schema}.message; ANALYZE {schema}.message"
    );
    client.batch_execute(&others).await.unwrap();
    let mut sender = connect(Postgres::shared()).await;
    let sends = sender.transaction().await.unwrap();
    let mut nexts = Vec::new();
    for number in 0..20 {
        let group = number.to_string();
        storage.queues().put(&queue, of_group("first", &group)).await.unwrap();
        let leased = get(&storage, &queue, 1).await.remove(0);
        // Every other one is passed on: a send behind it is open.
        if number % 2 == 0 {
            put_row(&sends, &schema, &group).await;
            storage.queues().put(&queue, of_group("next", &group)).await.unwrap();
        }
        storage.queues().delete(&queue, &leased.message, ExpiredReceipt::Refuse).await.unwrap();
        if number % 2 == 0 {
            nexts.extend(get(&storage, &queue, 1).await);
        }
    }
    assert_eq!(texts(&nexts), ["next"; 10]);
    sends.rollback().await.unwrap();
    // The rows of the former firsts are free now, and are removed with these.
    for next in nexts {
        storage.queues().delete(&queue, &next.message, ExpiredReceipt::Refuse).await.unwrap();
    }
    drop(storage);
    for index in ["message_waiting", "message_pkey", "message_due", "message_head"] {
        let read = format!(
            "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = 'SCHEMA' AND indexrelname = '{index}'"
        );
        let read = read_by_ended_sessions(&schema, &read).await;
        assert!(read < 1_000, "{read} entries of {index} were read");
    }
    snapshot.rollback().await.unwrap();
}

#[tokio::test]
async fn removal_of_expired_messages_reads_no_others() {
    let (storage, queue, schema) = named().await;
    let client = connect(Postgres::shared()).await;
    fill(&client, &schema, "1, 1::bigint << 50, (1::bigint << 50) + n").await;
    for _ in 0..20 {
        assert_eq!(get(&storage, &queue, 1).await, []);
    }
    removed_expired(&client, &schema, &storage).await;
    drop(storage);
    let read = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = 'SCHEMA' AND indexrelname = 'message_expiry'";
    let read = read_by_ended_sessions(&schema, read).await;
    assert!(read < 1_000, "{read} entries were read");
}

/// Waits until a message that has expired is removed.
async fn removed_expired(client: &Client, schema: &str, storage: &Storage) {
    let add = format!(
        "INSERT INTO {schema}.message (queue, visible_at, expires_at, inserted_at, receipt, text) VALUES (1, 0, 1, 0, '', '')"
    );
    client.batch_execute(&add).await.unwrap();
    let there = format!("SELECT count(*) FROM {schema}.message WHERE expires_at = 1");
    within(async {
        while client.query_one(&there, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            get(storage, &"jobs".parse().unwrap(), 1).await;
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn expiry_of_the_journal_reads_no_newer_entries() {
    let (storage, _, schema) = named().await;
    let client = connect(Postgres::shared()).await;
    let fill = format!(
        "INSERT INTO {schema}.journal (ended, number, queue, id, source, kind, outcome, attempt, inserted, ran, worker)
         SELECT (extract(epoch FROM now()) * 1000000)::bigint, n, '', '', '', '', 'completed', 1, 0, 0, '' FROM generate_series(1, {MANY}) AS n;
         ANALYZE {schema}.journal"
    );
    client.batch_execute(&fill).await.unwrap();
    let journal = storage.blobs().clone().powers().journal.clone().unwrap();
    journal.expire(Duration::from_secs(3_600)).await.unwrap();
    drop((journal, storage));
    let read = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = 'SCHEMA' AND indexrelname = 'journal_pkey'";
    let read = read_by_ended_sessions(&schema, read).await;
    assert!(read < 1_000, "{read} entries were read");
}

#[tokio::test]
async fn count_of_a_queue_reads_no_other_queue() {
    let (storage, queue, schema) = named().await;
    let client = connect(Postgres::shared()).await;
    fill(&client, &schema, "7, 0, NULL::bigint").await;
    assert_eq!(storage.queues().queue_properties(&queue).await.unwrap().approximate_count, 0);
    let counts = storage.queues().powers().counts.as_ref().unwrap().counts_by_state(&queue).await.unwrap();
    assert_eq!(counts.waiting, 0);
    drop(storage);
    let scanned =
        "SELECT seq_tup_read FROM pg_stat_user_tables WHERE schemaname = 'SCHEMA' AND relname = 'message'";
    let scanned = read_by_ended_sessions(&schema, scanned).await;
    assert!(scanned < MANY + 1_000, "{scanned} rows were read, {MANY} of them by ANALYZE");
}

#[tokio::test]
async fn page_of_delayed_messages_reads_no_visible_ones() {
    let (storage, queue, schema) = named().await;
    let client = connect(Postgres::shared()).await;
    fill(&client, &schema, "1, n, NULL::bigint").await;
    let delayed = PutMessage::new("delayed").with_visibility_delay(Duration::from_secs(600));
    storage.queues().put(&queue, delayed).await.unwrap();
    let index = storage.queues().powers().index.clone().unwrap();
    let page = index.messages(&queue, MessageState::Delayed, None, 32).await.unwrap();
    assert_eq!(page.messages.len(), 1);
    drop((index, storage));
    let read = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = 'SCHEMA' AND indexrelname = 'message_due'";
    let read = read_by_ended_sessions(&schema, read).await;
    assert!(read < 1_000, "{read} entries were read");
}
