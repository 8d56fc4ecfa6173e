//! `mailing_list` as people run it: alone, in several processes, killed half-way, on Azurite, with bad input.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use jobqueue::Storage;
use jobqueue::storage::{BlobName, ContainerName};
use jobqueue_tests::azurite::Azurite;
use jobqueue_tests::example;
use rusqlite::{Connection, OpenFlags};

/// The time limit of a step, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

fn program(folder: &Path) -> Command {
    program_on(folder, &jobs(folder))
}

fn jobs(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("jobs.db").display())
}

fn program_on(folder: &Path, storage: &str) -> Command {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let mut program = Command::new(BUILT.get_or_init(|| example::built("mailing_list")));
    program.current_dir(folder).env("JOBQUEUE_STORAGE", storage).stdin(Stdio::null());
    program
}

/// A process that is killed (SIGKILL) when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(program: &mut Command) -> Running {
    Running(program.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

fn finished(program: &mut Command) -> String {
    let output = program.output().unwrap();
    let text = example::text(&output);
    assert!(output.status.success(), "{text}");
    text
}

fn query<T: rusqlite::types::FromSql>(folder: &Path, sql: &str) -> Vec<T> {
    let file = folder.join("target/mailing_list/lists.db");
    let Ok(connection) = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY) else {
        return Vec::new();
    };
    connection.busy_timeout(Duration::from_secs(20)).unwrap();
    // The tables may not be there yet.
    let Ok(mut statement) = connection.prepare(sql) else { return Vec::new() };
    statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

/// Returns the number of mails of each address, by mailing.
fn mails(folder: &Path) -> BTreeMap<String, BTreeMap<String, u32>> {
    let mut mailings: BTreeMap<String, BTreeMap<String, u32>> = BTreeMap::new();
    let outbox = folder.join("target/mailing_list/outbox");
    for mailing in std::fs::read_dir(outbox).into_iter().flatten().map(Result::unwrap) {
        if mailing.file_name() == "unfinished" {
            continue;
        }
        let addresses = mailings.entry(mailing.file_name().into_string().unwrap()).or_default();
        for mail in std::fs::read_dir(mailing.path()).unwrap().map(Result::unwrap) {
            let text = std::fs::read_to_string(mail.path()).unwrap();
            let to = text.lines().find_map(|line| line.strip_prefix("To: ")).expect(&text);
            assert!(text.ends_with("editors\r\n") || text.ends_with("editors\n"), "cut off: {text}");
            *addresses.entry(to.trim_matches(['<', '>']).to_owned()).or_default() += 1;
        }
    }
    mailings
}

/// Checks that each mailing is complete and archived, and that each confirmed subscriber of `made_up` has one
/// mail of each.
fn assert_all_sent_once(folder: &Path, mailings: usize, made_up: u32) {
    let expected: BTreeMap<String, u32> = (1..=made_up)
        .filter(|number| !number.is_multiple_of(10))
        .map(|number| (format!("reader-{number}@example.org"), 1))
        .collect();
    let sent = mails(folder);
    assert_eq!(sent.len(), mailings, "mailings in the outbox: {:?}", sent.keys());
    for (mailing, addresses) in &sent {
        assert!(*addresses == expected, "mailing {mailing}: {} of {}", addresses.len(), expected.len());
    }
    let archived: Vec<String> =
        query(folder, "SELECT id FROM archive WHERE status = 'Complete' AND failed = 0");
    assert_eq!(archived.len(), mailings);
    assert!(archived.iter().all(|id| sent.contains_key(id)), "{archived:?} are not {:?}", sent.keys());
    assert!(query::<String>(folder, "SELECT id FROM mailings").is_empty(), "not archived");
    assert_eq!(
        query::<u32>(folder, "SELECT sum(sent) FROM archive"),
        [u32::try_from(expected.len() * mailings).unwrap()]
    );
}

/// A first run ends by itself and prints what the header of the program says.
#[test]
fn first_run_sends_everything_and_prints_as_documented() {
    let folder = tempfile::tempdir().unwrap();
    let output = program(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", example::text(&output));
    assert_all_sent_once(folder.path(), 2, 200);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/mailing_list/main.rs");
    let source = std::fs::read_to_string(source).unwrap();
    let block = source.split(" Prints\n//!\n//! ```text\n").nth(1).unwrap();
    let promised = block.split("//! ```").next().unwrap().lines().map(|line| &line["//! ".len()..]);
    let printed = String::from_utf8(output.stdout).unwrap();
    let mut printed: Vec<&str> = printed.lines().collect();
    // The two mailings may overlap on a slow machine, so that the order is not looked at.
    for promised in promised {
        let matches = |line: &&str| match promised.strip_suffix('…') {
            Some(beginning) => line.starts_with(beginning),
            None => *line == promised,
        };
        let at = printed.iter().position(matches);
        printed.remove(at.unwrap_or_else(|| panic!("not printed: {promised}\nleft: {printed:#?}")));
    }
    assert!(printed.is_empty(), "printed, and not in the header: {printed:#?}");
}

/// A second run composes new mailings; mails of the first stay as they are.
#[test]
fn second_run_over_an_address_file_is_a_new_mailing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("list.txt"), "ada@example.com\n\n grace@example.net \n").unwrap();
    for run in 1..=2 {
        // With more faults a mail may fail at each of its attempts, and is given up.
        let arguments = ["--addresses", "list.txt", "--mailings", "1", "--faults", "20"];
        let printed = finished(program(folder.path()).args(arguments));
        let sent = mails(folder.path());
        assert_eq!(sent.len(), run, "{printed}");
        for addresses in sent.values() {
            let addresses: Vec<_> = addresses.keys().collect();
            assert_eq!(addresses, ["ada@example.com", "grace@example.net"], "{printed}");
        }
    }
}

/// Returns the number of children that the batch of the only mailing has certainly sent.
async fn queued(storage: &Storage) -> u64 {
    let container = ContainerName::new("jobqueue-batches").unwrap();
    let Ok(page) = storage.blobs().list_blobs(&container, "mailing-", None).await else { return 0 };
    let Some((cursor, _)) = page.blobs.iter().find(|(name, _)| name.ends_with("/cursor")) else { return 0 };
    let cursor = BlobName::new(container, cursor).unwrap();
    let found = storage.blobs().get_blob(&cursor, 100).await.unwrap();
    std::str::from_utf8(&found.data).unwrap().parse().unwrap()
}

fn sent(folder: &Path) -> u64 {
    let outbox = std::fs::read_dir(folder.join("target/mailing_list/outbox")).into_iter().flatten();
    let mailings = outbox.map(Result::unwrap).filter(|entry| entry.file_name() != "unfinished");
    mailings.map(|mailing| std::fs::read_dir(mailing.path()).unwrap().count() as u64).sum()
}

fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < give_up, "{what}: not in two minutes");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// S5, F43, F52, F83: killed when the fan-out has begun, twice in its middle and twice while mails are
/// written, with faults in between. Every recipient gets exactly one mail.
#[test]
fn kills_in_fan_out_and_sending_leave_one_mail_each() {
    const SUBSCRIBERS: u32 = 1500;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let storage = runtime.block_on(Storage::connect(&jobs(folder))).unwrap();
    let options = ["--mailings", "1", "--subscribers", &SUBSCRIBERS.to_string(), "--faults", "5"];
    let status = || query::<String>(folder, "SELECT status FROM mailings").pop().unwrap_or_default();
    let in_sending = |mails: u64| move |_: u64| sent(folder) >= mails;
    type Moment<'a> = (&'a str, Box<dyn Fn(u64) -> bool + 'a>);
    let moments: [Moment<'_>; 5] = [
        ("Queuing", Box::new(|_| status() == "Queuing")),
        ("Queuing", Box::new(|queued| queued >= 300)),
        ("Queuing", Box::new(|queued| queued >= 600)),
        ("Processing", Box::new(in_sending(800))),
        ("Processing", Box::new(in_sending(1100))),
    ];
    for (expected, is_now) in moments {
        let victim = start(program(folder).args(options));
        wait_until(expected, || is_now(runtime.block_on(queued(&storage))) && status() == expected);
        drop(victim);
        assert_eq!(status(), expected, "killed too late");
    }
    let text = finished(program(folder).args(options));
    assert!(text.contains("going on with 1 mailings"), "{text}");
    assert_all_sent_once(folder, 1, SUBSCRIBERS);
}

fn terminate(process: &mut Running) -> std::process::ExitStatus {
    let id = process.0.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &id]).status().unwrap().success());
    let give_up = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = process.0.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < give_up, "it does not stop");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// F51, F83: of two services one is killed while it sends; the other does its work, and stops cleanly after a
/// signal.
#[test]
fn two_services_share_the_work_and_one_may_be_killed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let serve = || start(program(folder).args(["--role", "serve"]));
    let (victim, mut other) = (serve(), serve());
    let composed =
        finished(program(folder).args(["--role", "compose", "--subscribers", "1000", "--apart", "1"]));
    assert!(composed.contains("composed “News no. 2” for 900 of 1000 subscribers, due in 1 s"), "{composed}");
    wait_until("mails", || sent(folder) >= 100);
    drop(victim);
    wait_until("the end", || {
        query::<u32>(folder, "SELECT count(*) FROM archive") == [2] || other.0.try_wait().unwrap().is_some()
    });
    assert!(terminate(&mut other).success());
    assert_all_sent_once(folder, 2, 1000);
}

/// F112: after a signal half-way, the program ends the work it has begun, says how to continue, and can
/// continue.
#[test]
fn sigterm_stops_cleanly_and_the_next_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let options = ["--mailings", "1", "--subscribers", "1000"];
    let mut program_now = program(folder);
    program_now.args(options).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut running = Running(program_now.spawn().unwrap());
    wait_until("mails", || sent(folder) >= 50);
    assert!(terminate(&mut running).success());
    let mut said = String::new();
    std::io::Read::read_to_string(running.0.stdout.as_mut().unwrap(), &mut said).unwrap();
    assert!(said.ends_with("stopped before the end; start again to go on\n"), "{said}");
    assert!(sent(folder) < 900, "stopped after the end");
    finished(program(folder).args(options));
    assert_all_sent_once(folder, 1, 1000);
}

/// The same on Azure Storage queues and blobs, killed while it sends.
#[test]
fn on_azurite_a_killed_run_is_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let storage = Azurite::shared().connection_string();
    let run = || {
        let mut program = program_on(folder, &storage);
        program.args(["--mailings", "1", "--subscribers", "200"]);
        program
    };
    let victim = start(&mut run());
    wait_until("mails", || sent(folder) >= 20);
    drop(victim);
    assert!(sent(folder) < 180, "killed too late");
    finished(&mut run());
    assert_all_sent_once(folder, 1, 200);
}

#[test]
fn bad_input_ends_with_one_line_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("wrong.txt", "ada@example.com\nnobody at home\n");
    write("empty.txt", "\n\n");
    let cases: [(&[&str], &str); 8] = [
        (&["--mailings", "0"], "--mailings"),
        (&["--subscribers", "many"], "--subscribers"),
        (&["--faults", "90"], "--faults"),
        (&["--role", "editor"], "--role"),
        (&["--addresses", "missing.txt"], "missing.txt"),
        (&["--addresses", "wrong.txt"], "wrong.txt, line 2: not an e-mail address"),
        (&["--addresses", "empty.txt"], "empty.txt has no addresses"),
        (&["--folder", "empty.txt"], "the folder empty.txt/outbox/unfinished cannot be made"),
    ];
    for (case, told) in cases {
        assert_one_line(&program(folder.path()).args(case).output().unwrap(), told);
        assert!(!folder.path().join("jobs.db").exists(), "{case:?} has touched the storage");
        assert!(!folder.path().join("target").exists(), "{case:?} has written something");
    }
    assert_one_line(
        &program(folder.path()).args(["--storage", "nonsense"]).output().unwrap(),
        "unrecognised storage string",
    );
}

/// A mailing that cannot end stops the program, after the number of attempts that the job type declares.
#[test]
fn a_fan_out_that_is_given_up_ends_with_one_line() {
    let folder = tempfile::tempdir().unwrap();
    finished(program(folder.path()).args(["--role", "compose", "--mailings", "1"]));
    let lists = Connection::open(folder.path().join("target/mailing_list/lists.db")).unwrap();
    // Recipients can be written down no more.
    lists.execute_batch("DROP TABLE recipients; CREATE VIEW recipients AS SELECT 'x' AS mailing").unwrap();
    drop(lists);
    let output = program(folder.path()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    let last = told.trim_end().lines().last().unwrap();
    assert!(last.starts_with("error: the job `mailing.fanout` was given up: "), "{told}");
    assert!(mails(folder.path()).is_empty());
}

fn assert_one_line(output: &Output, wanted: &str) {
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "succeeded, and should have said {wanted:?}");
    assert_eq!(told.trim_end().lines().count(), 1, "{told}");
    assert!(told.starts_with("error: ") && told.contains(wanted), "{wanted:?} is not in: {told}");
}
