//! The small examples run and print what their headers say.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jobqueue::Storage;
use jobqueue::storage::ContainerName;
use jobqueue_tests::example;

fn program(name: &str, folder: &Path) -> Command {
    let mut program = Command::new(example::built(name));
    let storage = format!("sqlite:{}", folder.join("jobs.db").display());
    program.current_dir(folder).env("JOBQUEUE_STORAGE", storage).stdin(Stdio::null());
    program
}

/// Runs an example and compares what it prints with the block in its header; `…` stands for anything.
fn prints_what_its_header_says(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let output = program(name, folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", example::text(&output));
    // It may be one in operation, and lessons clear their queues.
    let named = folder.path().join("jobs.db");
    assert!(!named.exists(), "{name} uses the storage that `JOBQUEUE_STORAGE` names");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(format!("{name}.rs"));
    let source = std::fs::read_to_string(source).unwrap();
    assert!(source.lines().count() < 120, "{name} is no small example any more");
    let block = source.split("//! ```text\n").nth(1).unwrap().split("//! ```").next().unwrap();
    let promised: Vec<&str> = block.lines().map(|line| line.trim_start_matches("//!").trim()).collect();
    let printed = String::from_utf8(output.stdout).unwrap();
    let printed: Vec<&str> = printed.lines().collect();
    assert_eq!(printed.len(), promised.len(), "{printed:#?}");
    for (printed, promised) in printed.iter().zip(promised) {
        match promised.strip_suffix('…') {
            Some(beginning) => assert!(printed.starts_with(beginning), "{printed}"),
            None => assert_eq!(*printed, promised),
        }
    }
}

#[test]
fn lesson_01_hello() {
    prints_what_its_header_says("01_hello");
}

#[test]
fn lesson_02_validation() {
    prints_what_its_header_says("02_validation");
}

#[test]
fn lesson_03_retries_and_dead_letters() {
    prints_what_its_header_says("03_retries_and_dead_letters");
}

#[test]
fn lesson_04_checkpoints() {
    prints_what_its_header_says("04_checkpoints");
}

#[test]
fn lesson_05_transactions() {
    prints_what_its_header_says("05_transactions");
}

#[test]
fn lesson_06_state_and_layers() {
    prints_what_its_header_says("06_state_and_layers");
}

#[test]
fn lesson_07_changing_messages() {
    prints_what_its_header_says("07_changing_messages");
}

#[test]
fn lesson_08_large_payloads() {
    prints_what_its_header_says("08_large_payloads");
}

#[test]
fn lesson_09_schedules() {
    prints_what_its_header_says("09_schedules");
}

#[test]
fn lesson_10_batches() {
    prints_what_its_header_says("10_batches");
}

#[test]
fn lesson_11_many_jobs_in_one_call() {
    prints_what_its_header_says("11_many_jobs_in_one_call");
}

/// S2: the self-renewing lock is completed, abandoned by a drop, released.
#[test]
fn message_lock() {
    prints_what_its_header_says("message_lock");
}

/// S4, F43: killed half-way, the pipeline continues at the saved stage and frame.
#[test]
fn video_pipeline_goes_on_where_a_killed_worker_had_come() {
    let folder = tempfile::tempdir().unwrap();
    let submit = ["--role", "submit", "--videos", "1", "--frames", "60", "--grace", "0"];
    let output = program("video_pipeline", folder.path()).args(submit).output().unwrap();
    assert!(output.status.success(), "{}", example::text(&output));
    let mut victim = worker(folder.path());
    wait_for_encoded_frames(folder.path());
    victim.kill().unwrap();
    victim.wait().unwrap();
    let output = program("video_pipeline", folder.path()).args(["--role", "work"]).output().unwrap();
    let text = example::text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("video-1: going on with encode at frame "), "{text}");
    assert!(text.contains("video-1: done, 60 frames, 2949120 bytes to "), "{text}");
}

#[test]
fn video_pipeline_waits_for_the_grace_and_does_all_stages() {
    let folder = tempfile::tempdir().unwrap();
    let started = Instant::now();
    let all = ["--videos", "2", "--frames", "4", "--grace", "1"];
    let output = program("video_pipeline", folder.path()).args(all).output().unwrap();
    let text = example::text(&output);
    assert!(output.status.success(), "{text}");
    assert!(started.elapsed() >= Duration::from_secs(1), "the grace was not waited for");
    for video in ["video-1: done, 4 frames", "video-2: done, 4 frames"] {
        assert!(text.contains(video), "{text}");
    }
}

fn worker(folder: &Path) -> Child {
    let mut program = program("video_pipeline", folder);
    program.args(["--role", "work"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Waits until some frames are encoded: the worker is in the middle of the second stage.
fn wait_for_encoded_frames(folder: &Path) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let storage = format!("sqlite:{}", folder.join("jobs.db").display());
        let storage = Storage::connect(&storage).await.unwrap();
        let container = ContainerName::new("videos").unwrap();
        let give_up = Instant::now() + Duration::from_secs(60);
        loop {
            let blobs = storage.blobs().list_blobs(&container, "video-1/encoded-", None).await.unwrap();
            if blobs.blobs.len() >= 2 {
                return;
            }
            assert!(Instant::now() < give_up, "no frame was encoded in a minute");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}
