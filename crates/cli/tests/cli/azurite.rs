//! The program on Azure Storage, with Azurite as the server.

use jobqueue_test_support::azurite::{Azurite, KEY};

use crate::shape::check;
use crate::support::{Sandbox, fill};

#[test]
fn dead_letters_on_azure_are_listed_and_put_back() {
    let azurite = Azurite::start();
    let mut sandbox = Sandbox::new();
    sandbox.storage = azurite.connection_string();
    fill(&sandbox.storage, 34, 3);
    check("queues", &sandbox.json(&["queues"]));
    let table = sandbox.ok(&["queues"]);
    let row: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().take(4).collect();
    assert_eq!(
        row,
        ["mails", "34", "0", "?"],
        "Azure shows 32 messages, and counts delayed ones with them: {table}"
    );
    assert_eq!(sandbox.json(&["peek", "mails", "--deep", "--yes"]).as_array().unwrap().len(), 34);
    check("dead_letters", &sandbox.json(&["dead", "list", "mails"]));
    let report = sandbox.json(&["dead", "redrive", "mails", "--reason", "rejected", "--limit", "2"]);
    check("bulk_report", &report);
    assert_eq!(sandbox.counts(), (36, 1));
    sandbox.ok(&["queue", "settings", "apply", "mails", "poisonthreshold=7"]);
    assert!(sandbox.ok(&["queue", "show", "mails"]).contains("poisonthreshold = 7\n"));
    let output = sandbox.run(&["backup", "copy.db"]);
    assert_eq!(output.status.code(), Some(2));
    for text in [output.stdout, output.stderr, table.into_bytes()] {
        assert!(!String::from_utf8_lossy(&text).contains(KEY));
    }
}
