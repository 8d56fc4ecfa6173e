//! The example `azure` does what it says, by account key and by shared access signature.

use std::process::{Command, Output};

use jobqueue_tests::azurite::{Azurite, KEY};
use jobqueue_tests::{example, sas};

fn run(storage: &str, queue: &str) -> Output {
    let mut program = Command::new(example::built("azure"));
    program.args(["--queue", queue]).env("JOBQUEUE_STORAGE", storage).output().unwrap()
}

fn by_sas(permissions: &str) -> String {
    let azurite = Azurite::shared();
    let sas = sas::account_sas(permissions, "2100-01-01T00:00:00Z");
    sas::connection_string(azurite.queue_endpoint(), azurite.blob_endpoint(), &sas)
}

#[test]
fn jobs_run_by_key_and_by_signature() {
    let key = Azurite::shared().connection_string();
    // `rwdacup` is what the guide asks of a process that sends and works, and creates what is missing.
    for (storage, right) in [(key, "account key"), (by_sas("rwdacup"), "shared access signature")] {
        let queue = format!("example-{}", uuid::Uuid::new_v4().simple());
        let output = run(&storage, &queue);
        let text = example::text(&output);
        assert!(output.status.success(), "{text}");
        for wanted in [
            format!("right: {right}\n"),
            "storage: azure:devstoreaccount1\n".to_owned(),
            "translated letter: 9 bytes, attempt 1\n".to_owned(),
            "translated novel: 140000 bytes, attempt 1\n".to_owned(),
            "completed 2, dead-lettered 1\n".to_owned(),
            "dead letter poem: rejected (there is nothing to translate)\n".to_owned(),
        ] {
            assert!(text.contains(&wanted), "{wanted:?} is missing in\n{text}");
        }
        assert!(!text.contains(KEY) && !text.contains("sig="), "{text}");
    }
}

/// F13: the program names the missing permission.
#[test]
fn missing_permission_is_named() {
    let queue = format!("example-{}", uuid::Uuid::new_v4().simple());
    let output = run(&by_sas("rwdac"), &queue);
    let text = example::text(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("'u'") && text.contains("'p'"), "{text}");
    assert!(!text.contains("sig="), "{text}");
}
