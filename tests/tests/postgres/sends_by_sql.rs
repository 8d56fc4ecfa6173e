//! Sends by the function `put` of the schema.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::postgres::tokio_postgres::Client;
use jobqueue::postgres::tokio_postgres::error::SqlState;
use jobqueue::{Context, JobError, Queue, Storage, Worker};
use jobqueue_test_support::postgres::Postgres;
use jobqueue_tests::jobs::{Task, task};
use jobqueue_tests::running::Running;

use crate::{connect, connect_to, own_schema};

const GUIDE: &str = include_str!("../../../jobqueue/src/docs/postgres.md");

/// A queue of tasks, and a session of another program.
struct Bench {
    storage: Storage,
    queue: Queue<Task>,
    client: Client,
    schema: String,
}

impl Bench {
    async fn new() -> Self {
        let (options, schema) = own_schema();
        let storage = Storage::open(options).await.unwrap();
        let queue = storage.queue().await.unwrap();
        Self { storage, queue, client: connect(Postgres::shared()).await, schema }
    }

    /// Executes statements of the other program.
    async fn execute(&self, text: &str) {
        self.client.batch_execute(&text.replace("jobqueue.", &format!("{}.", self.schema))).await.unwrap();
    }
}

/// Only the notification of the commit wakes the worker in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_that_a_trigger_sends_runs_in_a_waiting_worker() {
    let bench = Bench::new().await;
    let trigger = "CREATE TABLE jobqueue.orders (item text);
        CREATE FUNCTION jobqueue.ship() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM jobqueue.put('tasks', 'task', jsonb_build_object('name', NEW.item));
            RETURN NEW;
        END $$;
        CREATE TRIGGER ship AFTER INSERT ON jobqueue.orders FOR EACH ROW EXECUTE FUNCTION jobqueue.ship()";
    bench.execute(trigger).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let handler = move |task: Task| {
        noted.lock().unwrap().push(task.name);
        async { Ok::<_, JobError>(()) }
    };
    let builder = Worker::builder(bench.storage.clone()).max_idle_delay(Duration::from_secs(3_600));
    let mut worker = Running::start(builder.handle(handler)).await;
    bench.execute("BEGIN; INSERT INTO jobqueue.orders VALUES ('undone'); ROLLBACK").await;
    bench.execute("BEGIN; INSERT INTO jobqueue.orders VALUES ('tea'), ('jam'); COMMIT").await;
    assert_eq!(worker.ended().await.name(), "completed");
    assert_eq!(worker.ended().await.name(), "completed");
    let _ = worker.stop().await;
    seen.lock().unwrap().sort();
    assert_eq!(*seen.lock().unwrap(), ["jam", "tea"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arguments_are_those_of_the_job() {
    let bench = Bench::new().await;
    let send = "SELECT jobqueue.put('tasks', 'task', jsonb_build_object('name', 'a', 'data', chr(65534) || U&'\\00e9<&>'),
            id => 'order 7', key => 'ada', source => '/shop', version => 1);
        SELECT jobqueue.put('tasks', 'task', '{\"name\": \"b\"}', id => 'order 8', delay => '0 s', ttl => '1 hour')";
    bench.execute(send).await;
    let handler = async |task: Task, ctx: Context| {
        let info = ctx.info();
        if &*info.id == "order 7" {
            assert_eq!(task.data, "\u{FFFE}\u{e9}<&>");
            assert_eq!(info.key.as_deref(), Some("ada"));
            assert_eq!(&*info.source, "/shop");
            assert!(info.expires.is_none());
        } else {
            assert_eq!(&*info.id, "order 8");
            assert_eq!(&*info.source, "postgres:/postgres");
            assert!(info.expires.is_some());
        }
        Ok::<_, JobError>(())
    };
    let worker = Worker::builder(bench.storage.clone()).handle(handler).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_a_key_run_in_the_order_of_sends_of_both_kinds() {
    let bench = Bench::new().await;
    let put = |name: &str| {
        format!(
            "SELECT jobqueue.put('tasks', 'task', '{{\"name\": \"{name}\"}}', key => 'k', in_order => true)"
        )
    };
    bench.execute(&put("1")).await;
    let _ = bench.queue.send(&task("2")).key("k").in_order().await.unwrap();
    bench.execute(&put("3")).await;
    let _ = bench.queue.send(&task("4")).key("k").in_order().await.unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let handler = move |task: Task| {
        noted.lock().unwrap().push(task.name);
        async { Ok::<_, JobError>(()) }
    };
    let worker = Worker::builder(bench.storage.clone()).handle(handler).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 4);
    assert_eq!(*seen.lock().unwrap(), ["1", "2", "3", "4"]);
}

/// A delay beyond what a storage can hide a message is part of the event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_job_is_hidden_and_begins_no_earlier() {
    let bench = Bench::new().await;
    bench.execute("SELECT jobqueue.put('tasks', 'task', '{\"name\": \"a\"}', delay => '8 days')").await;
    assert!(bench.queue.receive(Duration::ZERO).await.unwrap().is_none());
    assert_eq!(bench.queue.approximate_len().await.unwrap(), 1);
    // The storage hides it for seven of them.
    bench.execute("UPDATE jobqueue.message SET visible_at = jobqueue.writing()").await;
    let worker = Worker::builder(bench.storage.clone()).handle(async |_: Task| Ok::<_, JobError>(()));
    let report = worker.build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 0);
    assert_eq!(bench.queue.approximate_len().await.unwrap(), 1);
}

/// The time to live is compared with the delay that the event names.
#[tokio::test]
async fn delay_of_a_year_is_as_long_in_the_event_as_in_the_rules() {
    let bench = Bench::new().await;
    bench.execute("SELECT jobqueue.put('tasks', 'task', '1', delay => '1 year')").await;
    bench
        .execute(
            "DO $$ BEGIN ASSERT (SELECT (text::json->>'notbefore')::timestamptz - (text::json->>'time')::timestamptz
            = interval '365.25 days' FROM jobqueue.message); END $$",
        )
        .await;
}

#[tokio::test]
async fn wrong_arguments_are_refused_with_a_reason() {
    let bench = Bench::new().await;
    let wrong = [
        ("'none', 'task', '1'", "there is no queue 'none'"),
        ("NULL, 'task', '1'", "there is no queue NULL"),
        ("'tasks', '', '1'", "needs a kind"),
        ("'tasks', 'task', '1', id => ''", "an id has"),
        ("'tasks', 'task', '1', id => repeat('ü', 600)", "an id has"),
        ("'tasks', 'task', '1', source => ''", "a source has"),
        ("'tasks', 'task', '1', version => 0", "a version is"),
        ("'tasks', 'task', '1', in_order => true", "needs a key"),
        ("'tasks', 'task', '1', in_order => true, key => 'a', ttl => '1 h'", "cannot have a time to live"),
        ("'tasks', 'task', '1', delay => '-1 s'", "a delay is"),
        ("'tasks', 'task', '1', delay => '11 years'", "a delay is"),
        ("'tasks', 'task', '1', delay => 'infinity'", "a delay is"),
        ("'tasks', 'task', '1', ttl => 'infinity'", "a time to live is finite"),
        ("'tasks', 'task', '1', ttl => '-infinity'", "a time to live is finite"),
        ("'tasks', 'task', '1', ttl => '500 ms'", "at least 1 second"),
        ("'tasks', 'task', '1', ttl => '5 s', delay => '5 s'", "longer than the delay"),
        ("'tasks', 'task', to_jsonb(repeat('x', 65536))", "the body is too large"),
        ("'tasks', 'task', to_jsonb(repeat('&', 40000))", "the body is too large"),
        ("'tasks', repeat('k', 16001), '1'", "kind and key are too large"),
    ];
    for (arguments, reason) in wrong {
        let put = format!("SELECT {}.put({arguments})", bench.schema);
        let error = bench.client.query(&put, &[]).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(*error.code(), SqlState::INVALID_PARAMETER_VALUE, "{arguments}: {error}");
        assert!(error.message().contains(reason), "{arguments}: {error}");
    }
    assert!(bench.queue.is_empty().await.unwrap());
}

#[tokio::test]
async fn role_with_the_rights_that_the_guide_names_sends() {
    let bench = Bench::new().await;
    let named = GUIDE.split_once("needs the rights of a sender: ").unwrap().1.split("\n\n").next().unwrap();
    let words: Vec<_> = named.split('`').skip(1).step_by(2).collect();
    let [usage, select, queue, message, insert, update, changed] = words[..] else { panic!("{words:?}") };
    let (schema, role) = (&bench.schema, format!("sender_{}", bench.schema));
    let grants = [
        format!("{usage} ON SCHEMA {schema}"),
        format!("{usage} ON ALL SEQUENCES IN SCHEMA {schema}"),
        format!("{select} ON {schema}.{queue}, {schema}.{message}"),
        format!("{insert}, {update} ON {schema}.{changed}"),
    ];
    bench.execute(&format!("CREATE ROLE {role} LOGIN")).await;
    for grant in grants {
        bench.execute(&format!("GRANT {grant} TO {role}")).await;
    }
    let address = Postgres::shared().connection_string().replace("//postgres@", &format!("//{role}@"));
    let client = connect_to(&address).await;
    // The second waits for the first.
    for in_order in [true, true, false] {
        let put = format!("SELECT {schema}.put('tasks', 'task', '1', key => 'k', in_order => {in_order})");
        client.batch_execute(&put).await.unwrap();
    }
    assert_eq!(bench.queue.approximate_len().await.unwrap(), 3);
}
