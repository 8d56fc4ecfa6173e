//! A hundred jobs that one transaction completes.

use jobqueue::chunk::ChunkJob;
use jobqueue::{JobError, State, Storage, Worker};
use jobqueue_tests::jobs::{Task, task};
use rusqlite::{Connection, TransactionBehavior};

use super::Calls;

/// Inserts the rows of all jobs, and completes the jobs, in one transaction.
async fn insert(
    jobs: Vec<ChunkJob<Task>>,
    State(calls): State<Calls>,
    State(file): State<String>,
) -> Result<(), JobError> {
    calls.note(&jobs);
    let transaction = move || {
        let mut connection = Connection::open(file).unwrap();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        for job in &jobs {
            transaction.execute("INSERT INTO effect (job) VALUES (?1)", [&job.message.name]).unwrap();
            job.context.complete_in_sqlite(&transaction).unwrap();
        }
        transaction.commit().unwrap();
    };
    tokio::task::spawn_blocking(transaction).await?;
    // The transaction has decided.
    Err(JobError::retry("too late"))
}

#[tokio::test]
async fn a_transaction_completes_all_jobs_of_a_call() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jobs.db").display().to_string();
    let storage = Storage::connect(&format!("sqlite:{file}")).await.unwrap();
    Connection::open(&file).unwrap().execute_batch("CREATE TABLE effect (job TEXT NOT NULL UNIQUE)").unwrap();
    let tasks = (0..100).map(|number| task(number.to_string()));
    let _ = storage.queue::<Task>().await.unwrap().send_all(tasks).await.unwrap();
    let calls = Calls::default();
    let builder = Worker::builder(storage.clone()).state(calls.clone()).state(file.clone());
    let report = super::run(builder.concurrency(100).handle_many(100, insert)).await;
    assert_eq!((report.completed, report.retried), (100, 0), "{report:?}");
    assert!(calls.all().len() < 100, "jobs have shared calls");
    let rows: i64 = Connection::open(&file)
        .unwrap()
        .query_row("SELECT count(*) FROM effect", [], |row| row.get(0))
        .unwrap();
    assert_eq!(rows, 100);
    assert!(storage.queue::<Task>().await.unwrap().is_empty().await.unwrap());
}
