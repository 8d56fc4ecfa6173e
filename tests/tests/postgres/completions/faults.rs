//! Transactions that cannot complete a job, and those of which the end is not known.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use jobqueue::postgres::tokio_postgres::IsolationLevel;
use jobqueue::{Context, ErrorKind, JobError, Storage, Worker};
use jobqueue_test_support::postgres::Postgres;
use jobqueue_tests::jobs::{Task, task};
use jobqueue_tests::running::Running;
use tokio::io::copy;
use tokio::net::{TcpListener, TcpStream};

use super::{Bench, Effects, End, Place};
use crate::own_schema;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_of_a_run_that_has_lost_its_lease_cannot_complete() {
    let bench = Bench::new().await;
    bench.send("a").await;
    let (place, queue) = (bench.place.clone(), bench.queue.clone());
    let handler = move |_: Task, ctx: Context| {
        let (place, queue) = (place.clone(), queue.clone());
        async move {
            // The lease is over, and another worker has the job.
            let end = place.sql("UPDATE jobqueue.message SET visible_at = jobqueue.writing()");
            place.connect().await.batch_execute(&end).await.unwrap();
            let successor = queue.receive(Duration::from_secs(20)).await.unwrap().unwrap();
            let lost = place.act(&ctx, End::Commit).await.unwrap_err();
            assert!(lost.is_lease_lost(), "{lost}");
            successor.complete().await.unwrap();
            Ok::<_, JobError>(())
        }
    };
    let mut worker = Running::start(bench.worker().concurrency(1).handle(handler)).await;
    assert_eq!(worker.ended().await.name(), "lease_lost");
    assert_eq!(bench.place.effects().await, Vec::<String>::new());
    drop(worker.stop().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_transaction_on_the_database_of_the_queue_completes_a_job() {
    let bench = Bench::new().await;
    bench.send("a").await;
    let (_, name) = own_schema();
    let client = bench.place.connect().await;
    for database in [&name, &format!("{name}_empty")] {
        client.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
    }
    let elsewhere = |database: &str| Place {
        address: bench.place.address.replace("/postgres?", &format!("/{database}?")),
        schema: bench.place.schema.clone(),
    };
    // It has the same schema, queue and job.
    let second = elsewhere(&name).open().await;
    second.send("a").await;
    let (place, other, empty) =
        (bench.place.clone(), second.place.clone(), elsewhere(&format!("{name}_empty")));
    let handler = move |_: Task, ctx: Context| {
        let (place, other, empty) = (place.clone(), other.clone(), empty.clone());
        async move {
            let refused = other.act(&ctx, End::Commit).await.unwrap_err();
            assert!(refused.is_lease_lost(), "{refused}");
            let mut client = empty.connect().await;
            let transaction = client.transaction().await.unwrap();
            let refused = ctx.complete_in_postgres(&transaction).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Storage, "{refused}");
            Ok::<_, JobError>(place.act(&ctx, End::Commit).await?)
        }
    };
    let report = bench.worker().handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!((report.completed, report.retried), (1, 0));
    assert_eq!(second.queue.approximate_len().await.unwrap(), 1);
    assert_eq!(second.place.effects().await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_of_another_storage_cannot_be_completed_on_postgresql() {
    let storage = Storage::memory();
    storage.queue().await.unwrap().send(&task("a")).await.unwrap();
    let handler = async |_: Task, ctx: Context| {
        let mut client = Place::new().connect().await;
        let transaction = client.transaction().await.unwrap();
        let refused = ctx.complete_in_postgres(&transaction).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        let refused = ctx.once_in_postgres(&transaction, "effect").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        Ok::<_, JobError>(())
    };
    let report = Worker::builder(storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
}

/// The lease was renewed after the transaction began: its snapshot has the receipt before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_with_an_older_snapshot_is_repeated() {
    let bench = Bench::new().await;
    bench.send("a").await;
    let place = bench.place.clone();
    let handler = move |_: Task, ctx: Context| {
        let place = place.clone();
        async move {
            let mut client = place.connect().await;
            for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
                let transaction = client.build_transaction().isolation_level(level).start().await.unwrap();
                transaction.batch_execute("SELECT 1").await.unwrap();
                ctx.checkpoint(&"changes the receipt").await?;
                let error = ctx.complete_in_postgres(&transaction).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
                assert!(error.is_retryable() && !error.is_lease_lost(), "{error}");
                transaction.rollback().await.unwrap();
            }
            let level = IsolationLevel::Serializable;
            let transaction = client.build_transaction().isolation_level(level).start().await.unwrap();
            ctx.complete_in_postgres(&transaction).await?;
            transaction.commit().await.map_err(JobError::retry)
        }
    };
    let report = bench.worker().handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!((report.completed, report.retried), (1, 0));
}

/// It ends when its coordinator says so, however long after the handler and its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_transaction_decides_about_the_job_when_it_ends() {
    let server = Postgres::start(&["max_prepared_transactions=4"]);
    let place = Place { address: server.connection_string(), schema: "jobqueue".to_owned() };
    let bench = place.clone().open().await;
    bench.send("a").await;
    let (own, runs) = (place.clone(), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&runs);
    let handler = move |_: Task, ctx: Context| {
        let (place, run) = (own.clone(), count.fetch_add(1, Ordering::Relaxed));
        async move {
            let mut client = place.connect().await;
            let transaction = client.transaction().await.unwrap();
            ctx.complete_in_postgres(&transaction).await?;
            transaction.batch_execute(&format!("PREPARE TRANSACTION '{run}'")).await.unwrap();
            Ok::<_, JobError>(())
        }
    };
    let client = place.connect().await;
    let mut worker = Running::start(bench.worker_with(Duration::from_secs(3)).handle(handler)).await;
    assert_eq!(worker.ended().await.name(), "lease_lost", "the end of the transaction is not known");
    client.batch_execute("ROLLBACK PREPARED '0'").await.unwrap();
    assert_eq!(worker.ended().await.name(), "lease_lost", "the second run");
    client.batch_execute("COMMIT PREPARED '1'").await.unwrap();
    assert_eq!(worker.ended().await.name(), "completed");
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    let _ = worker.stop().await;
}

/// The future of the handler is dropped, and with it the transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handler_that_is_given_up_leaves_no_end_of_its_job() {
    let bench = Bench::new().await;
    bench.send("a").await;
    let (place, runs) = (bench.place.clone(), Arc::new(AtomicU32::new(0)));
    let handler = move |_: Task, ctx: Context| {
        let (place, run) = (place.clone(), runs.fetch_add(1, Ordering::Relaxed));
        async move {
            if run > 0 {
                return Ok::<_, JobError>(place.act(&ctx, End::Commit).await?);
            }
            let mut client = place.connect().await;
            let transaction = client.transaction().await.unwrap();
            ctx.complete_in_postgres(&transaction).await?;
            std::future::pending().await
        }
    };
    let builder = bench.worker().max_run_time(Duration::from_secs(2)).cancel_grace(Duration::ZERO);
    let mut worker = Running::start(builder.handle(handler)).await;
    assert_eq!(worker.ended().await.name(), "retried");
    assert_eq!(worker.ended().await.name(), "completed");
    let _ = worker.stop().await;
    assert_eq!(bench.place.effects().await, ["a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_that_is_ended_before_its_commit_leaves_no_effect() {
    let bench = Bench::new().await;
    bench.send("a").await;
    let (place, runs) = (bench.place.clone(), Arc::new(AtomicU32::new(0)));
    let handler = move |_: Task, ctx: Context| {
        let (place, run) = (place.clone(), runs.fetch_add(1, Ordering::Relaxed));
        async move {
            if run > 0 {
                return Ok::<_, JobError>(place.act(&ctx, End::Commit).await?);
            }
            let mut client = place.connect().await;
            let transaction = client.transaction().await.unwrap();
            transaction
                .execute(&place.sql("INSERT INTO jobqueue.effect VALUES ('lost')"), &[])
                .await
                .unwrap();
            ctx.complete_in_postgres(&transaction).await?;
            let session = transaction.query_one("SELECT pg_backend_pid()", &[]).await.unwrap();
            let end = "SELECT pg_terminate_backend($1, 60000)";
            place.connect().await.execute(end, &[&session.get::<_, i32>(0)]).await.unwrap();
            transaction.commit().await.map_err(JobError::retry)
        }
    };
    let mut worker = Running::start(bench.worker().handle(handler)).await;
    assert_eq!(worker.ended().await.name(), "retried");
    assert_eq!(worker.ended().await.name(), "completed");
    let _ = worker.stop().await;
    assert_eq!(bench.place.effects().await, ["a"]);
}

/// Passes bytes on. Once it cuts, the next answer of the server is lost, and the connection with it.
async fn cutting_proxy(server: SocketAddr, cuts: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let cuts = Arc::clone(&cuts);
            tokio::spawn(async move {
                let mut server = TcpStream::connect(server).await.unwrap();
                let ((mut from_client, mut to_client), (from_server, mut to_server)) =
                    (client.split(), server.split());
                let answers = async {
                    loop {
                        from_server.readable().await.unwrap();
                        let mut answer = [0; 4096];
                        let Ok(length) = from_server.try_read(&mut answer) else { continue };
                        if length == 0 || cuts.load(Ordering::Acquire) {
                            return;
                        }
                        tokio::io::AsyncWriteExt::write_all(&mut to_client, &answer[..length]).await.unwrap();
                    }
                };
                tokio::select! { () = answers => {} _ = copy(&mut from_client, &mut to_server) => {} }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_whose_commit_has_no_answer_is_done() {
    let bench = Bench::new().await;
    bench.send("a").await;
    let cuts = Arc::new(AtomicBool::new(false));
    let server = Postgres::shared().address();
    let proxy = cutting_proxy(server, Arc::clone(&cuts)).await;
    let place = Place {
        address: bench.place.address.replace(&server.to_string(), &proxy.to_string()),
        schema: bench.place.schema.clone(),
    };
    let handler = move |_: Task, ctx: Context| {
        let (place, cuts) = (place.clone(), Arc::clone(&cuts));
        async move {
            let mut client = place.connect().await;
            let transaction = client.transaction().await.unwrap();
            transaction.execute(&place.sql("INSERT INTO jobqueue.effect VALUES ('a')"), &[]).await.unwrap();
            ctx.complete_in_postgres(&transaction).await?;
            cuts.store(true, Ordering::Release);
            Err::<(), _>(JobError::retry(transaction.commit().await.unwrap_err()))
        }
    };
    let report = bench.worker().handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!((report.completed, report.retried), (1, 0));
    assert_eq!(bench.place.effects().await, ["a"]);
}
