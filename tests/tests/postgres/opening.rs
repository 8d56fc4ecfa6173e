//! The schema: its creation, its migration, and the refusal of a newer one.

use std::time::Duration;

use jobqueue::postgres::Options;
use jobqueue::storage::{ExpiredReceipt, Operation, PutMessage, Storage, StoreError, StoreErrorKind};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::Task;

use crate::{connect, get, options, own_schema, put, texts, with_queue};
use jobqueue_test_support::postgres::Postgres;

/// Opens a storage and returns why it was refused.
async fn refusal(options: Options) -> (StoreErrorKind, String) {
    let error = Storage::open(options).await.unwrap_err();
    let error = StoreError::in_chain(&error).unwrap();
    (error.kind(), error.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_open_a_new_database_at_once() {
    let (options, _) = own_schema();
    let mut opening = tokio::task::JoinSet::new();
    for _ in 0..8 {
        opening.spawn(Storage::open(options.clone()));
    }
    for opened in opening.join_all().await {
        opened.unwrap();
    }
}

// review 25, databases DB-6
#[tokio::test]
async fn containers_that_cannot_be_created_are_asked_for_once() {
    let (options, _) = own_schema();
    // Quiet: a server runs in real time.
    let faulty = Faulty::quiet(&Storage::open(options).await.unwrap());
    faulty.plan_always(Operation::CreateContainer, Fault::Refuse(StoreErrorKind::Unauthorized));
    let storage = faulty.storage();
    for name in ["first", "second", "third"] {
        let _ = storage.queue_named::<Task>(name).await.unwrap();
    }
    assert_eq!(faulty.calls_of(Operation::CreateContainer), 1);
}

#[tokio::test]
async fn newer_schema_is_used_if_it_allows_and_else_refused_with_advice() {
    let (options, schema) = own_schema();
    let (storage, queue) = with_queue(options.clone()).await;
    let client = connect(Postgres::shared()).await;
    client.batch_execute(&format!("UPDATE {schema}.schema_version SET version = 99")).await.unwrap();
    drop(Storage::open(options.clone()).await.unwrap());
    client.batch_execute(&format!("UPDATE {schema}.schema_version SET oldest_program = 99")).await.unwrap();
    let error = jobqueue::storage::StoreError::in_chain(&Storage::open(options).await.unwrap_err())
        .unwrap()
        .to_string();
    assert!(error.contains("version 99") && error.contains("use a newer version of jobqueue"), "{error}");
    // A migration that shuts older programs out renames their tables. Those that run are told so.
    client.batch_execute(&format!("ALTER TABLE {schema}.message RENAME TO message_of_99")).await.unwrap();
    let error = storage.queues().peek(&queue, 1).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Stopped);
    assert!(error.to_string().contains("a newer program has migrated it"), "{error}");
}

// F75
#[tokio::test]
async fn time_limit_may_be_without_end() {
    for limit in [Duration::MAX, Duration::from_secs(60 * 86_400)] {
        let (storage, queue) = with_queue(own_schema().0.timeout(limit)).await;
        put(&storage, &queue, "text").await;
        let message = get(&storage, &queue, 1).await.remove(0).message;
        storage.queues().delete(&queue, &message, ExpiredReceipt::Refuse).await.unwrap();
        put(&storage, &queue, "text").await;
        storage.queues().clear(&queue).await.unwrap();
    }
}

// round 31, newcomer b 8: only a program could name it, so that the command line found no other schema.
#[tokio::test]
async fn schema_is_named_in_the_connection_string() {
    let (options, schema) = own_schema();
    let (one, queue) = with_queue(options).await;
    put(&one, &queue, "text").await;
    let string = format!("{}&schema={schema}", Postgres::shared().connection_string());
    let other = Storage::open(Options::from_connection_string(&string).unwrap()).await.unwrap();
    assert_eq!(get(&other, &queue, 1).await.len(), 1);
    let (kind, text) = refusal(Options::from_connection_string("postgres://h/d?schema=1a").unwrap()).await;
    assert_eq!(kind, StoreErrorKind::Configuration);
    assert!(text.contains("the name of the schema") && !text.contains("1a"), "{text}");
}

#[tokio::test]
async fn schemas_of_one_database_are_apart() {
    let ((one, _), (other, _)) = (own_schema(), own_schema());
    let ((one, queue), (other, _)) = (with_queue(one).await, with_queue(other).await);
    put(&one, &queue, "one").await;
    assert_eq!(get(&other, &queue, 1).await, []);
    assert_eq!(texts(&get(&one, &queue, 1).await), ["one"]);
    for wrong in ["", "1a", "a-b", "a\"b", "A", &"a".repeat(51)] {
        let (kind, refused) = refusal(options(Postgres::shared()).schema(wrong)).await;
        assert_eq!(kind, StoreErrorKind::Configuration, "{wrong:?}: {refused}");
    }
}

/// A schema may be named as a word of SQL.
#[tokio::test]
async fn word_of_sql_names_a_schema() {
    let (storage, queue) = with_queue(options(Postgres::shared()).schema("user")).await;
    put(&storage, &queue, "text").await;
    assert_eq!(texts(&get(&storage, &queue, 1).await), ["text"]);
    let (kind, refused) = refusal(options(Postgres::shared()).schema("pg_jobs")).await;
    assert_eq!(kind, StoreErrorKind::Configuration, "{refused}");
}

/// With a snapshot of the transaction's begin a deletion does not find the next of a group.
#[tokio::test]
async fn other_isolation_than_read_committed_is_refused() {
    let (plain, schema) = own_schema();
    let text = Postgres::shared().connection_string()
        + "&options=-c%20default_transaction_isolation%3Drepeatable%5C%20read";
    let other = Options::from_connection_string(&text).unwrap().schema(&schema);
    let (kind, refused) = refusal(other).await;
    assert_eq!(kind, StoreErrorKind::Configuration, "{refused}");
    assert!(refused.contains("default_transaction_isolation"), "{refused}");
    // A role that is changed later has it in its next sessions: a deletion fails, rather than lose the next
    // message.
    let (storage, queue) = with_queue(plain).await;
    for text in ["first", "next"] {
        let message = PutMessage::new(text).with_group("a".to_owned());
        storage.queues().put(&queue, message).await.unwrap();
    }
    let client = connect(Postgres::shared()).await;
    client.batch_execute("SET default_transaction_isolation = 'repeatable read'").await.unwrap();
    let deletion = client.batch_execute(&format!("DELETE FROM {schema}.message WHERE NOT waiting")).await;
    assert!(deletion.unwrap_err().as_db_error().unwrap().message().contains("read committed"));
    // The error comes before the rollback, which the next statement follows.
    client.batch_execute("SELECT").await.unwrap();
    assert_eq!(texts(&get(&storage, &queue, 1).await), ["first"]);
}

/// A process that is stuck in a migration does not hold up others without end.
#[tokio::test]
async fn opening_behind_a_migration_ends_in_time() {
    let (options, schema) = own_schema();
    let mut locking = connect(Postgres::shared()).await;
    let lock = locking.transaction().await.unwrap();
    let text = format!("SELECT pg_advisory_xact_lock(hashtextextended('jobqueue schema {schema}', 0))");
    lock.batch_execute(&text).await.unwrap();
    let opening = refusal(options.timeout(Duration::from_secs(2)));
    let (kind, refused) = tokio::time::timeout(Duration::from_secs(20), opening).await.expect("a limit");
    assert_eq!(kind, StoreErrorKind::Timeout, "{refused}");
    assert!(refused.starts_with("open storage"), "{refused}");
    lock.rollback().await.unwrap();
}

/// The command line neither makes tables in a mistyped database, nor migrates those of older programs.
#[tokio::test]
async fn tables_are_left_as_they_are_on_request() {
    let (options, schema) = own_schema();
    let (kind, refused) = refusal(options.clone().migrate(false)).await;
    assert_eq!(kind, StoreErrorKind::NotPrepared, "{refused}");
    let client = connect(Postgres::shared()).await;
    let schemas = "SELECT to_regnamespace($1) IS NULL";
    assert!(client.query_one(schemas, &[&schema]).await.unwrap().get::<_, bool>(0), "no schema was made");
    drop(Storage::open(options.clone()).await.unwrap());
    drop(Storage::open(options.clone().migrate(false)).await.unwrap());
    client.batch_execute(&format!("UPDATE {schema}.schema_version SET version = 0")).await.unwrap();
    let (kind, refused) = refusal(options.migrate(false)).await;
    assert_eq!(kind, StoreErrorKind::NotPrepared, "{refused}");
}

/// The owner of a schema need not be allowed to create others.
#[tokio::test]
async fn owner_of_the_schema_creates_its_tables() {
    let (_, schema) = own_schema();
    let role = format!("owner_of_{schema}");
    let client = connect(Postgres::shared()).await;
    let create = format!("CREATE ROLE {role} LOGIN; CREATE SCHEMA {schema} AUTHORIZATION {role}");
    client.batch_execute(&create).await.unwrap();
    let text = Postgres::shared().connection_string().replace("//postgres@", &format!("//{role}@"));
    let options = Options::from_connection_string(&text).unwrap().schema(&schema);
    let (storage, queue) = with_queue(options).await;
    put(&storage, &queue, "text").await;
}

/// I20
#[tokio::test]
async fn no_error_and_no_debug_form_has_the_password() {
    let text = Postgres::shared().connection_string().replace("//postgres@", "//nobody:hunter2@");
    let options = Options::from_connection_string(&text).unwrap();
    assert!(!format!("{options:?} {options:#?}").contains("hunter2"));
    let error = Storage::open(options).await.unwrap_err();
    let shown = format!("{error} {error:?} {error:#?}");
    assert!(!shown.contains("hunter2") && shown.contains("refused the role"), "{shown}");
    let error = Storage::connect(&format!("{text}&hunter2=hunter2")).await.unwrap_err();
    assert!(!format!("{error} {error:?} {error:#?}").contains("hunter2"));
}
