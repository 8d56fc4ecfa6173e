//! Helpers that these tests share.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use axum::{Router, http::HeaderMap};
use jobqueue::{Storage, WorkerBuilder};
use jobqueue_admin::Admin;
use jobqueue_dashboard::snapshot::Snapshots;
use jobqueue_test_support::python::environment;
use jobqueue_tests::jobs::{Task, task, worker};
use tower::ServiceExt as _;

/// The interval at which the workers of these tests tell what they run.
pub const PRESENCE: Duration = Duration::from_secs(15);

pub fn admin(storage: &Storage) -> Admin {
    Admin::builder(storage.clone()).build()
}

pub fn snapshots(storage: &Storage) -> Snapshots {
    Snapshots::new(admin(storage))
}

/// Returns a worker with a record of its jobs.
pub fn present(storage: &Storage) -> WorkerBuilder {
    worker(storage).presence(PRESENCE)
}

pub async fn send(storage: &Storage, count: usize) {
    let queue = storage.queue::<Task>().await.unwrap();
    for number in 0..count {
        let _ = queue.send(&task(format!("{number}"))).await.unwrap();
    }
}

/// Sends a GET request to a router.
pub async fn get(router: &Router, path: &str) -> (StatusCode, HeaderMap, String) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, headers, String::from_utf8(body.to_vec()).unwrap())
}

/// Sends a GET request to a router that answers in JSON.
pub async fn get_json(router: &Router, path: &str) -> (StatusCode, serde_json::Value) {
    let (status, _, body) = get(router, path).await;
    (status, serde_json::from_str(&body).unwrap())
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/operate/scale/python")
}

/// Returns a command that runs a Python program of these tests.
pub fn python(program: &str) -> Command {
    let python = environment("scale", &folder().join("requirements.txt"));
    let mut command = Command::new(python.unwrap_or_else(|error| panic!("{error}")));
    command.arg(folder().join(program)).env("PYTHONUTF8", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Runs a Python program with this input; returns the JSON that it prints.
pub fn run_python(program: &str, input: &str) -> serde_json::Value {
    let mut child = python(program).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program} refused:\n{input}");
    serde_json::from_slice(&output.stdout).unwrap()
}
