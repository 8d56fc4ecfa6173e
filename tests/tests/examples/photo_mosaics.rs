//! `photo_mosaics` as people run it: in one process, in several, killed half-way, with bad input.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use jobqueue::Storage;
use jobqueue::storage::ContainerName;
use jobqueue_test_support::postgres::Postgres;
use jobqueue_test_support::servicebus::ServiceBus;
use jobqueue_tests::azurite::Azurite;
use jobqueue_tests::example;

fn program(folder: &Path) -> Command {
    program_on(folder, &format!("sqlite:{}", folder.join("jobs.db").display()))
}

fn program_on(folder: &Path, storage: &str) -> Command {
    let mut program = Command::new(example::built("photo_mosaics"));
    program.current_dir(folder).env("JOBQUEUE_STORAGE", storage).stdin(Stdio::null());
    program
}

fn role(folder: &Path, role: &str) -> Running {
    start(program(folder).args(["--role", role]))
}

fn start(program: &mut Command) -> Running {
    Running(program.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// A process that is killed (SIGKILL) when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The mosaic of an undisturbed run in one process.
fn undisturbed() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let output = program(folder.path()).args(["--out", "mosaic.png"]).output().unwrap();
        assert!(output.status.success(), "{}", example::text(&output));
        assert!(example::text(&output).contains("mosaic: mosaic.png"), "{}", example::text(&output));
        std::fs::read(folder.path().join("mosaic.png")).unwrap()
    })
}

#[test]
fn one_process_makes_a_png_of_the_right_size() {
    let bytes = undisturbed();
    assert_eq!(&bytes[1..4], b"PNG");
    // Width and height stand in the header.
    let side = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(side(16), 1024);
    assert_eq!(side(20), 1024);
}

#[test]
fn roles_in_separate_processes_make_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let _workers = [
        role(folder.path(), "controller"),
        role(folder.path(), "processor"),
        role(folder.path(), "processor"),
    ];
    let output = client(folder.path(), "mosaic.png").output().unwrap();
    assert!(output.status.success(), "{}", example::text(&output));
    assert!(std::fs::read(folder.path().join("mosaic.png")).unwrap() == undisturbed());
}

/// The same picture on Azure Storage queues and blobs, by roles in separate processes.
#[test]
fn roles_on_azurite_make_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Azurite::shared().connection_string();
    let work = |role| start(program_on(folder.path(), &storage).args(["--role", role]));
    let _workers = [work("controller"), work("processor")];
    let mut client = program_on(folder.path(), &storage);
    let output = client.args(["--role", "client", "--out", "mosaic.png"]).output().unwrap();
    assert!(output.status.success(), "{}", example::text(&output));
    assert!(std::fs::read(folder.path().join("mosaic.png")).unwrap() == undisturbed());
}

/// The same picture on PostgreSQL.
#[test]
fn roles_on_postgres_make_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Postgres::shared().connection_string();
    let work = |role| start(program_on(folder.path(), &storage).args(["--role", role]));
    let _workers = [work("controller"), work("processor")];
    let mut client = program_on(folder.path(), &storage);
    let output = client.args(["--role", "client", "--out", "mosaic.png"]).output().unwrap();
    assert!(output.status.success(), "{}", example::text(&output));
    assert!(std::fs::read(folder.path().join("mosaic.png")).unwrap() == undisturbed());
}

/// The same picture on queues of Service Bus, with blobs in a SQLite file.
#[test]
fn roles_on_service_bus_make_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let emulator = ServiceBus::start();
    let blobs = folder.path().join("blobs.db");
    let storage = format!("{};Blobs=sqlite:{}", emulator.connection_string(), blobs.display());
    let work = |role| start(program_on(folder.path(), &storage).args(["--role", role]));
    let _workers = [work("controller"), work("processor")];
    let mut client = program_on(folder.path(), &storage);
    let output = client.args(["--role", "client", "--out", "mosaic.png"]).output().unwrap();
    assert!(output.status.success(), "{}", example::text(&output));
    assert!(std::fs::read(folder.path().join("mosaic.png")).unwrap() == undisturbed());
}

fn client(folder: &Path, out: &str) -> Command {
    let mut client = program(folder);
    client.args(["--role", "client", "--out", out]);
    client
}

/// F43, F52: a processor is killed while it renders; another finishes, and the bytes are those of an
/// undisturbed run.
#[test]
fn a_killed_processor_is_replaced_and_the_bytes_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let _controller = role(folder.path(), "controller");
    let victim = role(folder.path(), "processor");
    let mut client = client(folder.path(), "mosaic.png").stderr(Stdio::piped()).spawn().unwrap();
    wait_for_strips(folder.path());
    drop(victim);
    assert!(client.try_wait().unwrap().is_none(), "the mosaic was done before the kill");
    let _successor = role(folder.path(), "processor");
    assert!(client.wait().unwrap().success());
    assert!(std::fs::read(folder.path().join("mosaic.png")).unwrap() == undisturbed());
}

/// Waits until rows of some slice are stored: the processor is in the middle of its work.
fn wait_for_strips(folder: &Path) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let storage = format!("sqlite:{}", folder.join("jobs.db").display());
        let storage = Storage::connect(&storage).await.unwrap();
        let container = ContainerName::new("photo-mosaics").unwrap();
        let give_up = Instant::now() + Duration::from_secs(120);
        loop {
            let blobs = storage.blobs().list_blobs(&container, "", None).await;
            if blobs.is_ok_and(|page| page.blobs.iter().any(|(name, _)| name.contains("/strip-"))) {
                return;
            }
            assert!(Instant::now() < give_up, "no row was rendered in two minutes");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

#[test]
fn bad_input_ends_with_one_line_and_submits_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.jpg");
    std::fs::write(&text, "not a picture").unwrap();
    let empty: PathBuf = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let cases: [&[&str]; 8] = [
        &["--image", "text.jpg"],
        &["--image", "missing.png"],
        &["--tile-size", "0"],
        &["--tile-size", "many"],
        &["--slices", "0"],
        &["--slices", "200"],
        &["--tiles", "empty"],
        &["--out", "empty"],
    ];
    for case in cases {
        let output = program(folder.path()).args(case).output().unwrap();
        assert_one_line(&output, case);
        assert!(!folder.path().join("jobs.db").exists(), "{case:?} has touched the storage");
    }
    let output = program(folder.path()).args(["--storage", "nonsense"]).output().unwrap();
    assert_one_line(&output, &["--storage", "nonsense"]);
}

fn assert_one_line(output: &Output, case: &[&str]) {
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{case:?} succeeded");
    assert_eq!(told.trim_end().lines().count(), 1, "{case:?}: {told}");
    assert!(told.starts_with("error: "), "{case:?}: {told}");
}
