//! Questions on a pseudo-terminal, which Python's standard library opens.

use std::path::Path;
use std::process::Command;

use crate::support::{Sandbox, error_text};

/// Runs the program on a terminal, waits for a question, and answers it. Prints the contents of the terminal,
/// and ends with the program's exit code.
const TERMINAL: &str = r#"
import os, pty, select, sys
answer, question, program = sys.argv[1], sys.argv[2], sys.argv[3:]
pid, terminal = pty.fork()
if pid == 0:
    os.execv(program[0], program)
shown, answered = b"", False
while True:
    ready, _, _ = select.select([terminal], [], [], 60)
    if not ready:
        os.kill(pid, 9)
        sys.exit("no answer within a minute: " + repr(shown))
    try:
        data = os.read(terminal, 4096)
    except OSError:
        data = b""
    if not data:
        break
    shown += data
    if question.encode() in shown and not answered:
        os.write(terminal, b"\x03" if answer == "^C" else answer.encode() + b"\n")
        answered = True
sys.stdout.write(shown.decode())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

/// Returns the exit code, and everything that the terminal has shown.
fn answer(sandbox: &Sandbox, answer: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let program = ["-c", TERMINAL, answer, "to continue: ", env!("CARGO_BIN_EXE_jobqueue")];
    let mut python = Command::new("python3");
    python
        .args(program)
        .args(arguments)
        .env("JOBQUEUE_STORAGE", &sandbox.storage)
        .env("HOME", sandbox.folder.path());
    let output = python.env("TERM", "xterm").env_remove("NO_COLOR").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), text + &String::from_utf8_lossy(&output.stderr))
}

#[test]
fn purge_asks_for_the_name_of_the_queue() {
    let sandbox = Sandbox::with_mails(1, 2);
    let purge = ["dead", "purge", "mails", "--all"];
    let (code, shown) = answer(&sandbox, "yes", &purge);
    assert_eq!(code, Some(4), "{shown}");
    assert!(shown.contains("about 2") && shown.contains("Type `mails`"), "{shown}");
    assert_eq!(sandbox.counts(), (1, 2));
    let (code, shown) = answer(&sandbox, "mails", &purge);
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("2 deleted"), "{shown}");
    assert_eq!(sandbox.counts(), (1, 0));
}

#[test]
fn signal_at_the_question_changes_nothing() {
    let sandbox = Sandbox::with_mails(0, 1);
    let (code, shown) = answer(&sandbox, "^C", &["dead", "purge", "mails", "--all"]);
    assert_eq!(code, Some(130), "{shown}");
    assert_eq!(sandbox.counts(), (0, 1));
}

#[test]
fn deep_peek_asks_and_sees_past_the_first_messages() {
    let sandbox = Sandbox::with_mails(40, 0);
    let (code, shown) = answer(&sandbox, "yes", &["peek", "mails", "--deep", "-o", "ndjson"]);
    assert_eq!(code, Some(0), "{shown}");
    assert_eq!(shown.matches("\"message_id\"").count(), 40, "{shown}");
    let after = sandbox.json(&["peek", "mails"]);
    assert_eq!(after.as_array().unwrap().len(), 32);
    assert_eq!(after[0]["attempts"], 0, "a deep peek is not an attempt");
}

#[test]
fn colour_is_only_on_terminals_that_want_it() {
    let sandbox = Sandbox::with_mails(0, 1);
    let (_, shown) = answer(&sandbox, "no", &["dead", "purge", "mails", "--all"]);
    assert!(shown.contains("\u{1b}[1;31merror:"), "{shown:?}");
    let output = sandbox.run(&["dead", "purge", "mails", "--all"]);
    assert!(!output.stderr.contains(&0x1b));
}

/// Returns the version of the schema in a SQLite file, from its header.
fn schema_of(file: &Path) -> Vec<u8> {
    std::fs::read(file).unwrap()[60..64].to_vec()
}

#[test]
fn refused_creation_creates_and_migrates_nothing() {
    let sandbox = Sandbox::new();
    let (file, audit) = (sandbox.path("jobs.db"), sandbox.path("audit.ndjson"));
    let storage = &sandbox.storage;
    sandbox.configure(&format!(
        "[contexts.live]\nstorage = '{storage}'\nproduction = true\naccess = 'read_only'\n"
    ));
    let create = ["queue", "create", "mails", "--context", "live", "--audit-file", audit.to_str().unwrap()];
    let refused = |confirmed: &[&str]| {
        let output = sandbox.without_storage(&[&create, confirmed].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{}", error_text(&output));
        let asks = error_text(&output).contains("create or migrate the storage, and create the queue");
        assert_eq!(asks, confirmed.is_empty(), "{}", error_text(&output));
        let recorded = std::fs::read_to_string(&audit).unwrap_or_default();
        // audit 28, operator B1: the event named the storage `memory`.
        for line in recorded.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()) {
            assert_eq!(line["result"], "refused", "{line}");
            assert_eq!(line["storage"], *storage, "{line}");
        }
        assert_eq!(recorded.is_empty(), !file.exists() && confirmed.is_empty(), "{recorded}");
    };
    for confirmed in [&[][..], &["--yes"]] {
        refused(confirmed);
        assert!(!file.exists(), "{confirmed:?}");
    }
    sandbox.ok(&["queue", "create", "mails"]);
    let older = rusqlite::Connection::open(&file).unwrap();
    // The tables as the migration to version 4 leaves them.
    let tables = "DROP INDEX jobqueue_message_visible;
        CREATE INDEX jobqueue_message_visible ON jobqueue_message (queue, visible_at, id & 2199023255551)
            WHERE waiting = 0 AND visible_at IS NOT NULL;
        PRAGMA user_version = 4; PRAGMA wal_checkpoint(TRUNCATE);";
    older.execute_batch(tables).unwrap();
    drop(older);
    for confirmed in [&[][..], &["--yes"]] {
        refused(confirmed);
        assert_eq!(schema_of(&file), [0, 0, 0, 4], "{confirmed:?}");
    }
}

/// A string that is wrong is no storage that is still to be made.
#[test]
fn creation_in_a_wrong_storage_is_neither_asked_about_nor_recorded() {
    let sandbox = Sandbox::new();
    let audit = sandbox.path("audit.ndjson");
    let create = ["queue", "create", "mails", "--context", "live", "--audit-file", audit.to_str().unwrap()];
    for storage in ["mysql://host/jobs", "sqlite://jobs.db", "postgres://host/jobs?sslmode=perhaps"] {
        sandbox.configure(&format!("[contexts.live]\nstorage = '{storage}'\nproduction = true\n"));
        let output = sandbox.without_storage(&create).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{storage}: {}", error_text(&output));
        assert!(!audit.exists(), "{storage}");
    }
}
