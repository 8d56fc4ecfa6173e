//! No statement reads a whole table or index, whatever the planner believes of the tables: the test executes
//! every statement of the crate.

mod explained;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jobqueue::QueueName;
use jobqueue::postgres::tokio_postgres::Client;
use jobqueue::postgres::{create_blob_in, put_in};
use jobqueue::runtime::Runtime;
use jobqueue::storage::{
    BlobName, Condition, ContainerName, ExpiredReceipt, JournalEntry, JournalQuery, LeaseId, MessageState,
    Metadata, PutBlob, PutMessage, Storage, UpdateMessage,
};

use crate::{LONG, connect, get, of_group, options, within};
use explained::Explained;
use jobqueue_postgres::update_in;
use jobqueue_test_support::postgres::Postgres;

/// The rows of each sort that are there.
const MANY: i64 = 20_000;

/// The statistics that the planner has.
#[derive(Clone, Copy, PartialEq)]
enum Statistics {
    /// The tables had pages, and no rows.
    Empty,
    Right,
}

#[tokio::test]
async fn no_statement_reads_a_whole_table_that_was_analysed_empty() {
    examine(Statistics::Empty).await;
}

#[tokio::test]
async fn no_statement_reads_a_whole_table_that_was_analysed_full() {
    examine(Statistics::Right).await;
}

async fn examine(statistics: Statistics) {
    let server = Postgres::start(&explained::SETTINGS);
    Storage::open(options(&server)).await.unwrap();
    let storage = Storage::open(options(&server)).await.unwrap();
    for queue in ["jobs", "other", "small", "gone"] {
        storage.queues().create_queue(&name(queue), &Metadata::new()).await.unwrap();
    }
    for container in ["box", "other"] {
        storage.blobs().create_container(&container.parse().unwrap()).await.unwrap();
    }
    let mut client = connect(&server).await;
    fill(&client, statistics).await;
    blobs(&storage, &mut client).await;
    journal(&storage).await;
    queues(&storage).await;
    messages(&storage, &mut client).await;
    storage.queues().clear(&name("small")).await.unwrap();
    // What cannot be reached is removed in the background.
    let last = [
        "jobqueue.pass_on(m.id)",
        "DELETE FROM jobqueue.blob WHERE id = ANY",
        "DELETE FROM jobqueue.garbage",
    ];
    within(async {
        while last.iter().any(|text| !server.log().contains(text)) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    drop(storage);
    let executed = Explained::all(&server.log());
    let excesses: Vec<_> = executed.iter().filter_map(Explained::excess).collect();
    assert!(excesses.is_empty(), "{}", excesses.join("\n"));
    let pages = executed.iter().filter(|one| one.text.contains("ORDER BY b.name"));
    assert_eq!(
        pages.map(|page| page.rows).collect::<Vec<_>>(),
        [101, 5_001, 5_001, 0],
        "rows of the listings"
    );
    let is_executed = |part: &String| executed.iter().any(|one| one.text.contains(part.as_str()));
    let others: Vec<_> = explained::of_source().into_iter().filter(|part| !is_executed(part)).collect();
    assert!(others.is_empty(), "the test does not execute these statements:\n{}", others.join("\n"));
}

fn name(queue: &str) -> QueueName {
    queue.parse().unwrap()
}

/// Fills the tables behind the storage's back, for the planner with rows of which it does not know.
async fn fill(client: &Client, statistics: Statistics) {
    let numbers = format!("WITH numbers AS (SELECT n FROM generate_series(1, {MANY}) AS n)");
    let rows = [
        "message (queue, visible_at, expires_at, inserted_at, receipt, text)
         SELECT 1, 1::bigint << 50, (1::bigint << 51) + n, 0, '', repeat('x', 100) FROM numbers",
        "message (queue, visible_at, inserted_at, waiting, receipt, group_hash, turn, text)
         SELECT 1, 1::bigint << 50, 0, waits, '', sha256(n::text::bytea), n, '' FROM numbers, unnest('{f,t}'::boolean[]) AS waits",
        "message (queue, visible_at, inserted_at, receipt, text) SELECT 2, 0, 0, '', '' FROM numbers",
        "message (queue, visible_at, expires_at, inserted_at, receipt, text) SELECT 2, 0, n, 0, '', '' FROM numbers LIMIT 1500",
        "blob (container, name, revision, etag, modified_at, length, metadata, content)
         SELECT container, format('%s/%s', n % 200, n), 1, 1, 0, 0, '[]', '' FROM numbers, unnest('{2,1}'::integer[]) AS container",
        "journal (ended, number, queue, id, source, kind, key, outcome, attempt, inserted, ran, worker)
         SELECT n, n, '', n, '', '', n, CASE n % 100 WHEN 0 THEN 'failed' ELSE 'completed' END, 1, 0, 0, '' FROM numbers",
    ];
    let put: String = rows.iter().map(|rows| format!("{numbers} INSERT INTO jobqueue.{rows};")).collect();
    let tables = ["message", "blob", "journal"];
    let empty: String = tables.iter().map(|table| format!("DELETE FROM jobqueue.{table};")).collect();
    // Neither these statements nor the trigger of the deletions are what is examined.
    let settings = "SET auto_explain.log_min_duration = -1; SET session_replication_role = replica";
    client.batch_execute(settings).await.unwrap();
    client.batch_execute(&format!("{put} {empty}")).await.unwrap();
    for table in tables {
        // The pages stay.
        client.batch_execute(&format!("VACUUM (ANALYZE, TRUNCATE false) jobqueue.{table}")).await.unwrap();
    }
    client.batch_execute(&put).await.unwrap();
    if statistics == Statistics::Right {
        for table in tables {
            client.batch_execute(&format!("ANALYZE jobqueue.{table}")).await.unwrap();
        }
    }
    client.batch_execute("RESET ALL").await.unwrap();
}

async fn blobs(storage: &Storage, client: &mut Client) {
    let (blobs, container) = (storage.blobs(), "box".parse::<ContainerName>().unwrap());
    let blob = BlobName::new(container.clone(), "7/new").unwrap();
    let mut absent = PutBlob::new();
    absent.condition = Condition::IfAbsent;
    for options in [absent.clone(), PutBlob::new()] {
        blobs.put_blob(&blob, "text".into(), options).await.unwrap();
    }
    blobs.get_blob(&blob, 100).await.unwrap();
    blobs.blob_properties(&blob).await.unwrap();
    for (prefix, marker, found) in
        [("7/", None, 101), ("", None, 5_000), ("", Some("150"), 5_000), ("none/", None, 0)]
    {
        let listed = blobs.list_blobs(&container, prefix, marker).await.unwrap();
        assert_eq!(listed.blobs.len(), found, "{prefix} {marker:?}");
    }
    let leases = blobs.clone().powers().leases.clone().unwrap();
    let lease = leases
        .acquire_lease(&blob, Duration::from_secs(60), &LeaseId::random(&Runtime::new()))
        .await
        .unwrap();
    leases.release_lease(&blob, &lease).await.unwrap();
    blobs.delete_blob(&blob, None).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    create_blob_in(&transaction, "jobqueue", &blob, "text".into(), absent).await.unwrap();
    transaction.commit().await.unwrap();
    blobs.delete_container(&"other".parse().unwrap()).await.unwrap();
}

async fn journal(storage: &Storage) {
    let journal = storage.blobs().clone().powers().journal.clone().unwrap();
    let ended = SystemTime::UNIX_EPOCH + Duration::from_micros(1);
    let text = || Arc::<str>::from("text");
    let entry = JournalEntry {
        ended,
        number: 7,
        queue: text(),
        id: text(),
        source: text(),
        kind: text(),
        key: None,
        outcome: text(),
        reason: None,
        attempt: 1,
        inserted: ended,
        ran: Duration::ZERO,
        error: None,
        worker: text(),
        trace: None,
    };
    journal.append(vec![entry].into()).await.unwrap();
    let query = |change: fn(&mut JournalQuery)| {
        let mut query = JournalQuery::default();
        query.limit = 10;
        change(&mut query);
        query
    };
    for (query, found) in [
        (query(|query| query.id = Some("77".into())), 1),
        (query(|query| query.key = Some("77".into())), 1),
        (query(|query| query.outcome = Some("failed".into())), 10),
        (query(|_| {}), 10),
    ] {
        assert_eq!(journal.search(&query).await.unwrap().entries.len(), found, "{query:?}");
    }
    journal.expire(Duration::from_secs(60)).await.unwrap();
}

async fn queues(storage: &Storage) {
    let (queues, small) = (storage.queues(), name("small"));
    let metadata = queues.powers().metadata.clone().unwrap();
    let found = metadata.queue_metadata(&small).await.unwrap();
    metadata.replace_queue_metadata(&small, &found, &found).await.unwrap();
    queues.set_queue_metadata(&small, &found).await.unwrap();
    queues.create_queue(&small, &found).await.unwrap();
    assert_eq!(queues.queue_properties(&small).await.unwrap().approximate_count, 0);
    assert_eq!(queues.list_queues("").await.unwrap().len(), 4);
    for queue in ["other", "gone"] {
        queues.delete_queue(&name(queue)).await.unwrap();
    }
}

async fn messages(storage: &Storage, client: &mut Client) {
    let (queues, jobs, small) = (storage.queues(), name("jobs"), name("small"));
    for queue in [&jobs, &small] {
        queues.put(queue, PutMessage::new("text")).await.unwrap();
        for put in queues.put_all(queue, (0..4).map(|_| of_group("text", "group")).collect()).await {
            put.unwrap();
        }
    }
    let transaction = client.transaction().await.unwrap();
    put_in(&transaction, "jobqueue", &jobs, PutMessage::new("text")).await.unwrap();
    transaction.commit().await.unwrap();
    let leased = get(storage, &jobs, 3).await;
    assert_eq!(leased.len(), 3);
    assert_eq!(get(storage, &jobs, 3).await, []);
    let [first, second, third] = [0, 1, 2].map(|place: usize| &leased[place].message);
    let changed = queues.update(&jobs, first, UpdateMessage::new(LONG)).await.unwrap();
    queues.update(&jobs, first, UpdateMessage::new(LONG)).await.unwrap_err();
    let mut renewed = first.clone();
    renewed.receipt = changed.receipt;
    let transaction = client.transaction().await.unwrap();
    let change = UpdateMessage::new(LONG);
    update_in(&transaction, "jobqueue", &jobs, first, &change).await.unwrap_err();
    update_in(&transaction, "jobqueue", &jobs, second, &change).await.unwrap();
    transaction.rollback().await.unwrap();
    let ended = vec![renewed, second.clone(), third.clone(), first.clone()];
    let answers = queues.delete_all(&jobs, ended, ExpiredReceipt::Refuse).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 3, "{answers:?}");
    let index = queues.powers().index.clone().unwrap();
    assert_eq!(index.messages(&jobs, MessageState::Waiting, None, 32).await.unwrap().messages.len(), 32);
    let delayed = index.messages(&jobs, MessageState::Delayed, None, 32).await.unwrap().messages;
    assert!(index.make_visible(&jobs, &delayed[0].0.id).await.unwrap());
    for state in [MessageState::Running, MessageState::BackingOff] {
        assert!(index.messages(&small, state, None, 32).await.unwrap().messages.is_empty());
    }
}
