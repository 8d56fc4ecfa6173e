//! KEDA's external scaler, asked by a client in Python that is made from the description of the interface.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::Duration;

use jobqueue::admin::Admin;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::testing::faults::{Fault, Faulty};
use jobqueue::{Storage, memory};
use jobqueue_dashboard::keda::{Scaler, serve_on};
use jobqueue_dashboard::snapshot::Snapshots;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::support::{python, send};

struct Keda {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Keda {
    fn connect(address: SocketAddr) -> Self {
        let proto =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../jobqueue-dashboard/src/keda/externalscaler.proto");
        let mut child = python("keda.py").arg(proto).arg(address.to_string()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output) }
    }

    fn ask(&mut self, method: &str, metadata: Value) -> Value {
        self.tell(&json!({"method": method, "metadata": metadata, "count": 2}));
        self.answer()
    }

    fn tell(&mut self, command: &Value) {
        writeln!(self.input, "{command}").unwrap();
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("the client ended: {line:?}"))
    }
}

impl Drop for Keda {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves a scaler while `client` asks it, on threads of its own.
async fn with_scaler(snapshots: Snapshots, client: impl FnOnce(Keda) + Send + 'static) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let ended = CancellationToken::new();
    let server = tokio::spawn(serve_on(Scaler::new(snapshots), listener, ended.clone().cancelled_owned()));
    tokio::task::spawn_blocking(move || client(Keda::connect(address))).await.unwrap();
    ended.cancel();
    server.await.unwrap().unwrap();
}

/// Returns snapshots that only the first question and arrivals bring about.
fn seldom(storage: &Storage) -> Snapshots {
    let hour = Duration::from_secs(3600);
    Snapshots::new(Admin::new(storage.clone())).every(hour).max_age(2 * hour)
}

#[tokio::test(flavor = "multi_thread")]
async fn python_client_reads_the_figures() {
    let storage = memory::open();
    send(&storage, 100).await;
    let client = |mut keda: Keda| {
        let tasks = json!({"queue": "tasks"});
        assert_eq!(keda.ask("IsActive", tasks.clone()), true);
        assert_eq!(keda.ask("GetMetricSpec", tasks.clone()), json!([["jobqueue-tasks", 1, 1.0]]));
        assert_eq!(keda.ask("GetMetrics", tasks), json!([["jobqueue-tasks", 2, 1.5625]]), "64 slots each");
        let small = json!({"queue": "tasks", "slotsPerWorker": "8"});
        assert_eq!(keda.ask("GetMetrics", small), json!([["jobqueue-tasks", 13, 12.5]]));
        assert_eq!(keda.ask("IsActive", json!({}))["error"], "INVALID_ARGUMENT");
        assert_eq!(
            keda.ask("GetMetrics", json!({"queue": "tasks", "targetDelay": "-1"}))["error"],
            "INVALID_ARGUMENT"
        );
        assert_eq!(keda.ask("IsActive", json!({"queue": "nobody"}))["error"], "NOT_FOUND");
    };
    with_scaler(seldom(&storage), client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn first_job_is_pushed_to_the_client() {
    let storage = memory::open();
    let _ = storage.queue::<jobqueue_tests::jobs::Task>().await.unwrap();
    let runtime = tokio::runtime::Handle::current();
    let snapshots = seldom(&storage);
    let client = move |mut keda: Keda| {
        assert_eq!(keda.ask("StreamIsActive", json!({"queue": "tasks"})), false);
        runtime.block_on(send(&storage, 1));
        assert_eq!(keda.answer(), true, "the next snapshot is an hour away");
    };
    with_scaler(snapshots, client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_figures_are_an_error_for_the_client() {
    // Quiet: its client is another program, in real time.
    let faulty = Faulty::quiet(&memory::open());
    send(&faulty.storage(), 1).await;
    faulty.plan_always(Operation::ListBlobs, Fault::Refuse(StoreErrorKind::Unavailable));
    let client = |mut keda: Keda| {
        for method in ["IsActive", "GetMetrics"] {
            assert_eq!(keda.ask(method, json!({"queue": "tasks"}))["error"], "UNAVAILABLE");
        }
    };
    with_scaler(seldom(&faulty.storage()), client).await;
}
