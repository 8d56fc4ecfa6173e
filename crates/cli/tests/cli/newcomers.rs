//! The commands that an operator runs in a first night on call, and the texts that answer the operator's
//! questions.

use std::time::Duration;

use jobqueue::worker::CircuitBreaker;
use jobqueue::{JobError, Storage, Worker};

use crate::support::{Mail, Sandbox, clear, error_text};
use crate::workers::wait_for;

/// Runs `check` while a worker runs whose handler fails, and whose circuit opens at once and for a day.
fn with_open_circuit(sandbox: &Sandbox, check: impl FnOnce()) {
    let storage = sandbox.storage.clone();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let day = Duration::from_secs(86_400);
            let handler = async |_: Mail| Err::<(), _>(JobError::retry("the bank is down"));
            let worker = Worker::builder(Storage::connect(&storage).await.unwrap())
                .presence(Duration::from_millis(200))
                .circuit_breaker(CircuitBreaker::new().failures(1).jobs(1).pause(day, day))
                .handle(handler);
            worker.build().unwrap().run_until(async { drop(stopped.await) }).await.unwrap()
        })
    });
    check();
    stop.send(()).unwrap();
    let _ = worker.join().unwrap();
}

// newcomers 28, C6: only `workers` showed the open circuit.
#[test]
fn open_circuit_is_in_the_state_of_its_queue_and_a_warning_of_doctor() {
    let sandbox = Sandbox::with_mails(2, 0);
    with_open_circuit(&sandbox, || {
        let words = "circuit open on 1 of 1 worker";
        wait_for("an open circuit", || sandbox.ok(&["queues"]).contains(words).then_some(()));
        let shown = sandbox.ok(&["queue", "show", "mails"]);
        assert!(shown.contains(words), "{shown}");
        let checks = sandbox.json(&["doctor"]);
        let circuit = checks.as_array().unwrap().iter().find(|check| check["check"] == "circuit");
        assert_eq!(circuit.expect("a check")["verdict"], "warning", "{checks:#}");
        assert_open_circuit_of_an_empty_queue(&sandbox);
    });
}

// incident 33, 3: the circuit of a queue in which nothing waited was a warning all night.
fn assert_open_circuit_of_an_empty_queue(sandbox: &Sandbox) {
    clear(&sandbox.storage, "mails");
    let words = "circuit open on 1 of 1 worker: the queue is empty, its next job is the probe";
    let shown = sandbox.ok(&["queues"]);
    assert!(shown.contains(words), "{shown}");
    let checks = sandbox.json(&["doctor"]);
    let circuit = checks.as_array().unwrap().iter().find(|check| check["check"] == "circuit");
    assert_eq!(circuit.expect("a check")["verdict"], "ok", "{checks:#}");
    let explained = sandbox.json(&["explain", "mails", "--measure", "0s"]);
    let reasons = explained["reasons"].as_array().unwrap();
    assert!(reasons.iter().all(|reason| reason["code"] != "circuit_open"), "{explained:#}");
}

// newcomers 28, C9: `send` accepted the mistyped kind silently, and the job was a dead letter a moment later.
#[test]
fn kind_without_a_handler_is_reported() {
    let sandbox = Sandbox::with_mails(1, 0);
    let payload = sandbox.path("payload.json");
    std::fs::write(&payload, "{}").unwrap();
    let send = |kind: &str| {
        let sent = sandbox.run(&["send", "mails", "--kind", kind, "--file", payload.to_str().unwrap()]);
        assert!(sent.status.success(), "{}", error_text(&sent));
        error_text(&sent).contains("no running worker has a handler for the kind `mial`")
    };
    assert!(!send("mial"), "no worker runs");
    with_open_circuit(&sandbox, || {
        let is_present =
            || sandbox.json(&["workers"]).as_array().is_some_and(|all| !all.is_empty()).then_some(());
        wait_for("a worker", is_present);
        assert!(send("mial"));
        assert!(!send("mail"));
    });
}

// newcomers 28, C15: pauses from a container were recorded under `unknown` without a message.
#[test]
fn change_without_an_operator_says_under_which_name_it_is_recorded() {
    let sandbox = Sandbox::with_mails(1, 0);
    let hints = |arguments: &[&str], name: Option<&str>| {
        let mut command = sandbox.command(arguments);
        command.env_remove("USER");
        let output = command.envs(name.map(|name| ("JOBQUEUE_OPERATOR", name))).output().unwrap();
        assert!(output.status.success(), "{}", error_text(&output));
        error_text(&output).matches("add --operator NAME").count()
    };
    assert_eq!(hints(&["queue", "pause", "mails"], None), 1);
    assert_eq!(hints(&["queue", "resume", "mails"], Some("ada")), 0);
    assert_eq!(hints(&["peek", "mails", "--deep", "--yes"], None), 1);
    assert_eq!(hints(&["queues"], None), 0);
}

// newcomers 28, A6, A13 and C13
#[test]
fn empty_results_are_explained_and_failures_reported_once() {
    let sandbox = Sandbox::with_mails(1, 0);
    let ended = sandbox.run(&["history", "--text", "the bank"]);
    assert!(ended.status.success(), "{}", error_text(&ended));
    assert!(
        error_text(&ended).contains("only workers with `WorkerBuilder::history`"),
        "{}",
        error_text(&ended)
    );
    let sent = sandbox.run(&["send", "no-such-queue", "--kind", "mail"]);
    assert!(!sent.status.success() && !error_text(&sent).contains("no jobs"), "{}", error_text(&sent));
}

// round 31, newcomer c 12
#[test]
fn misspelt_values_are_answered_with_what_is_possible() {
    let sandbox = Sandbox::with_mails(1, 0);
    let shown = error_text(&sandbox.run(&["queue", "show", "mials"]));
    assert_eq!(shown.matches("mials").count(), 1, "{shown}");
    let refused = error_text(&sandbox.run(&["history", "--outcome", "failed"]));
    assert!(refused.contains("completed, completed_uncertain, dead_lettered"), "{refused}");
    let help = sandbox.ok(&["history", "--help"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("a failed attempt with a retry is no end"), "{help}");
}

// review 28, operator B2: the error said that the job had ended, or never existed.
#[test]
fn search_for_an_id_names_the_dead_letters_of_a_deleted_queue() {
    let sandbox = Sandbox::with_mails(0, 1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let storage = jobqueue::Storage::connect(&sandbox.storage).await.unwrap();
        storage.queues().delete_queue(&"mails".parse().unwrap()).await.unwrap();
    });
    let explained = sandbox.run(&["explain", "dead-0"]);
    assert_eq!(explained.status.code(), Some(1), "{}", error_text(&explained));
    assert!(error_text(&explained).contains("`mails-poison`"), "{}", error_text(&explained));
}

// newcomers 28, C3, C7 and C8: no command found a dead letter beyond the first 32.
#[test]
fn job_is_found_by_its_id_alone_and_its_dead_letter_behind_others() {
    let sandbox = Sandbox::with_mails(1, 40);
    sandbox.ok(&["queue", "create", "letters"]);
    let last = sandbox.json(&["explain", "dead-39"]);
    assert_eq!(last["place"], "dead");
    assert_eq!(last["job"]["queue"], "mails");
    assert_eq!(sandbox.json(&["dead", "show", "mails", "dead-39"])["id"], "dead-39");
    let sent = sandbox.ok(&["dead", "resend", "mails", "dead-39"]);
    assert!(sent.contains("dead purge mails --id=dead-39"), "{sent}");
    assert_eq!(sandbox.run(&["explain", "no-such-job"]).status.code(), Some(3));
    sandbox.ok(&["dead", "resend", "mails", "dead-39", "--to", "letters", "--id", "dead-39"]);
    let both = sandbox.run(&["explain", "dead-39"]);
    assert_eq!(both.status.code(), Some(2), "{}", error_text(&both));
    assert!(error_text(&both).contains("`letters`, `mails`"), "{}", error_text(&both));
    // newcomers 30, A13
    let none = sandbox.run(&["explain"]);
    assert_eq!(none.status.code(), Some(2), "{}", error_text(&none));
    assert!(error_text(&none).contains("the id of the job is missing"), "{}", error_text(&none));
}
