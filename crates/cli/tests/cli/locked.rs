//! Commands while another process holds SQLite's write lock.

use rusqlite::Connection;

use crate::support::{Sandbox, error_text};

// incident 33, 1
#[test]
fn commands_that_read_succeed_while_another_process_holds_the_write_lock() {
    let sandbox = Sandbox::with_mails(2, 1);
    // Doctor writes to measure the clock, if its access allows it.
    let storage = &sandbox.storage;
    sandbox.configure(&format!(
        "default = \"local\"\n[contexts.local]\nstorage = \"{storage}\"\naccess = \"read_only\"\n"
    ));
    let shell = Connection::open(sandbox.path("jobs.db")).unwrap();
    // The shell, or a worker, has also left something in the log.
    shell.execute_batch("CREATE TABLE mine (x); BEGIN IMMEDIATE; INSERT INTO mine VALUES (1)").unwrap();
    let copy = sandbox.path("copy.db");
    let reads: [&[&str]; 13] = [
        &["queues"],
        &["queue", "show", "mails"],
        &["peek", "mails"],
        &["dead", "list", "mails"],
        &["history"],
        &["explain", "mails"],
        &["workers"],
        &["groups", "mails"],
        &["batches"],
        &["schedules", "list"],
        &["leaders"],
        &["doctor"],
        &["backup", copy.to_str().unwrap()],
    ];
    for arguments in reads {
        let output = sandbox.without_storage(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", error_text(&output));
    }
    shell.execute_batch("COMMIT").unwrap();
    assert_eq!(sandbox.counts(), (2, 1));
}
