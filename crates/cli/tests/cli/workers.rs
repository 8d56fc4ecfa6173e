//! Workers, cancellation, explanations, pauses, and the checks of `doctor`.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use jobqueue::{Context, JobError, Storage, Worker};
use jobqueue_admin::{AccessLevel, Admin, JobReference};

use crate::shape::check;
use crate::support::{Mail, Sandbox, error_text};

/// Calls `poll` until it returns a value. Panics after a minute.
pub(crate) fn wait_for<T>(what: &str, poll: impl Fn() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "no sign of {what} within a minute");
    }
}

#[test]
fn running_job_is_shown_with_its_progress_and_cancelled() {
    let sandbox = Sandbox::with_mails(1, 0);
    let storage = sandbox.storage.clone();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let handler = async |mail: Mail, ctx: Context| {
                ctx.progress(1, 3, format!("writing to {}", mail.to));
                ctx.token().cancelled().await;
                Err::<(), _>(JobError::retry("stopped"))
            };
            let worker = Worker::builder(Storage::connect(&storage).await.unwrap())
                .name("the worker")
                .presence(Duration::from_millis(200))
                .handle(handler);
            worker.build().unwrap().run_until(async { drop(stopped.await) }).await.unwrap()
        })
    });
    let job = wait_for("a running job", || {
        let workers = sandbox.json(&["workers"]);
        check("workers", &workers);
        let job = &workers[0]["running"][0];
        job["progress"].is_object().then(|| job["id"].as_str().unwrap().to_owned())
    });
    let table = sandbox.ok(&["workers", "--jobs"]);
    assert!(table.contains("the worker") && table.contains("1/3 writing to 0@example.org"), "{table}");
    // incident 33, 2: the ages looked exact.
    let (workers, of_queue) =
        (sandbox.ok(&["workers"]), sandbox.ok(&["explain", "mails", "--measure", "0s"]));
    assert!(workers.contains("mails") && of_queue.contains("as of up to "), "{workers}{of_queue}");
    for shown in [table, workers, of_queue, sandbox.ok(&["explain", "mails", &job])] {
        assert!(shown.contains("s ago"), "{shown}");
    }
    assert_explained(&sandbox, &job);

    check("cancellation", &sandbox.json(&["cancel", "mails", &job, "--status"]));
    let report = sandbox.json(&["cancel", "mails", &job]);
    check("cancel_report", &report);
    assert_eq!(report["workers"], 1);
    wait_for("the end of the job", || {
        let cancellation = sandbox.json(&["cancel", "mails", &job, "--status"]);
        check("cancellation", &cancellation);
        (cancellation["state"] == "cancelled").then_some(())
    });
    assert_eq!(sandbox.json(&["dead", "show", "mails", &job])["dead"]["reason"], "cancelled");
    stop.send(()).unwrap();
    let _ = worker.join().unwrap();
    assert_eq!(sandbox.run(&["cancel", "no-such-queue", &job]).status.code(), Some(3));
}

/// Asserts that the job, which runs, and its queue are explained with the name of the worker.
fn assert_explained(sandbox: &Sandbox, job: &str) {
    let queue = sandbox.json(&["explain", "mails", "--measure", "1s"]);
    check("queue_explanation", &queue);
    assert_eq!(queue["slots"]["holders"][0]["worker"], "the worker", "{queue}");
    assert_eq!(queue["ended_per_second"], 0.0, "{queue}");
    assert_eq!(queue["empty_in"]["state"], "never", "{queue}");
    // newcomers, O14
    let explained = sandbox.ok(&["explain", "mails", job]);
    assert!(explained.contains("\n  worker the worker, attempt 1 of "), "{explained}");
    let explained = sandbox.json(&["explain", "mails", job]);
    check("explanation", &explained);
    assert_eq!(explained["worker_name"], "the worker");
}

// D41, O11
#[test]
fn many_jobs_are_cancelled_by_a_plan_and_missing_ones_are_refused() {
    let sandbox = Sandbox::with_mails(3, 1);
    let file = sandbox.path("plan.json");
    let file = file.to_str().unwrap();
    for arguments in [
        &["cancel", "mails", "no-such-job"][..],
        &["cancel", "mails", "dead-0"],
        &["cancel", "mails", "--key", "nobody"],
    ] {
        assert_eq!(sandbox.run(arguments).status.code(), Some(3), "{arguments:?}");
    }
    assert_eq!(sandbox.run(&["cancel", "mails"]).status.code(), Some(2), "no condition does not select all");
    let preview = sandbox.ok(&["cancel", "mails", "--kind", "mail", "--dry-run", "--plan", file]);
    assert!(preview.starts_with("3 jobs would be cancelled"), "{preview}");
    assert_eq!(sandbox.run(&["cancel", "letters", "--plan", file]).status.code(), Some(2));
    // Another storage may have jobs with the ids of the plan.
    let other = Sandbox::with_mails(1, 0);
    let refused = other.run(&["cancel", "mails", "--plan", file]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(error_text(&refused).contains("the plan is for the storage "), "{}", error_text(&refused));
    other.ok(&["cancel", "mails", "--plan", file, "--any-storage"]);
    let text = sandbox.ok(&["cancel", "mails", "--plan", file]);
    let requested = "cancellation requested for 3 jobs; no worker with a record serves the queue";
    assert!(text.starts_with(requested), "{text}");
    let plan: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    check("cancel_plan", &plan);
    let id = plan["jobs"][0]["id"].as_str().unwrap();
    assert_eq!(sandbox.json(&["cancel", "mails", id, "--status"])["state"], "requested");
}

// newcomers 30, A8
#[test]
fn status_of_a_cancellation_says_that_the_job_has_ended_without_an_answer() {
    let sandbox = Sandbox::with_mails(1, 0);
    let id = sandbox.json(&["peek", "mails"])[0]["id"].as_str().unwrap().to_owned();
    sandbox.ok(&["cancel", "mails", &id]);
    let status = sandbox.ok(&["cancel", "mails", &id, "--status"]);
    assert!(status.trim_end().ends_with("; no worker has answered"), "{status}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // Without a record it reads no requests.
        let worker = Worker::builder(Storage::connect(&sandbox.storage).await.unwrap())
            .presence(None)
            .history(Duration::from_secs(86_400))
            .handle(async |_: Mail| Ok::<(), JobError>(()));
        assert_eq!(worker.build().unwrap().run_until_idle().await.unwrap().completed, 1);
    });
    let status = sandbox.ok(&["cancel", "mails", &id, "--status"]);
    assert!(status.contains("; no worker has answered. It has ended: completed at "), "{status}");
}

// round 35, E1: it read as if the job had been cancelled.
#[test]
fn status_of_a_cancellation_says_of_what_the_job_died_without_an_answer() {
    let sandbox = Sandbox::with_mails(0, 1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let storage = Storage::connect(&sandbox.storage).await.unwrap();
        let admin = Admin::builder(storage).access(AccessLevel::Operate).operator("ada").build();
        let _ = admin.cancel(&JobReference::new("mails", "dead-0")).await.unwrap();
    });
    let reason = sandbox.json(&["dead", "show", "mails", "dead-0"])["dead"]["reason"].clone();
    let status = sandbox.ok(&["cancel", "mails", "dead-0", "--status"]);
    let end = format!("; no worker has answered. It is a dead letter: {}: ", reason.as_str().unwrap());
    assert!(status.contains(&end), "{status}");
}

// A dead letter of the job does not prove that no other message of it waits among the messages not looked at.
#[test]
fn job_with_a_dead_letter_is_cancelled_if_another_message_of_it_may_wait() {
    let sandbox = Sandbox::with_mails(0, 1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mails = Storage::connect(&sandbox.storage).await.unwrap().queue::<Mail>().await.unwrap();
        let mail = |number: u32| Mail { to: format!("{number}@example.org") };
        let sent = mails.send_all((0..10_001).map(mail)).delay(Duration::from_secs(3_600)).await.unwrap();
        assert!(sent.iter().all(Result::is_ok));
        mails.send(&mail(0)).id("dead-0").delay(Duration::from_secs(7_200)).await.unwrap();
    });
    sandbox.ok(&["cancel", "mails", "dead-0"]);
    assert_eq!(sandbox.json(&["cancel", "mails", "dead-0", "--status"])["state"], "requested");
    // round 36, G2: on Azure the death was not named while any job waited.
    let status = sandbox.ok(&["cancel", "mails", "dead-0", "--status"]);
    assert!(status.contains("; no worker has answered. It is a dead letter: "), "{status}");
    assert!(status.trim_end().ends_with(" Another message of it may wait or run."), "{status}");
}

#[test]
fn doctor_reports_warnings_first() {
    let sandbox = Sandbox::with_mails(1, 2);
    sandbox.ok(&["queue", "pause", "mails"]);
    let checks = sandbox.json(&["doctor"]);
    check("checks", &checks);
    let verdict = |name: &str| {
        let found = checks.as_array().unwrap().iter().find(|check| check["check"] == name);
        found.unwrap_or_else(|| panic!("no {name}: {checks:#}"))["verdict"].as_str().unwrap().to_owned()
    };
    for name in ["connection", "settings", "permissions", "clock", "workers", "orphans"] {
        assert_eq!(verdict(name), "ok", "{checks:#}");
    }
    for name in ["paused", "dead letters", "unserved"] {
        assert_eq!(verdict(name), "warning", "{checks:#}");
    }
    let verdicts: Vec<_> =
        checks.as_array().unwrap().iter().map(|check| check["verdict"] == "warning").collect();
    assert!(verdicts.is_sorted_by(|one, next| one >= next), "warnings come first: {checks:#}");
    assert_eq!(sandbox.run(&["doctor", "--strict"]).status.code(), Some(1));
    assert!(sandbox.ok(&["queues"]).contains("no worker seen"));
    let text = sandbox.ok(&["doctor"]);
    assert!(!text.contains("requests"), "a file has no costs: {text}");
    assert!(text.contains("1 queue") && !text.contains("1 queues") && !text.contains("-0"), "{text}");
    assert_eq!(sandbox.run(&["doctor", "--queue", "no-such-queue"]).status.code(), Some(1));
}

#[test]
fn explanation_names_the_reason_why_a_job_waits() {
    let sandbox = Sandbox::with_mails(1, 1);
    let dead = sandbox.json(&["explain", "mails", "dead-0"]);
    check("explanation", &dead);
    assert_eq!(dead["place"], "dead", "{dead}");
    assert_eq!(dead["reasons"][0]["code"], "dead_letter", "{dead}");
    sandbox.ok(&["queue", "pause", "mails"]);
    let id = sandbox.json(&["peek", "mails"])[0]["id"].as_str().unwrap().to_owned();
    let waiting = sandbox.json(&["explain", "mails", &id]);
    check("explanation", &waiting);
    assert_eq!(waiting["place"], "waiting", "{waiting}");
    let text = sandbox.ok(&["explain", "mails", &id]);
    assert!(text.contains("\n  paused: ") && text.contains("\n  sent by "), "{text}");
}

#[test]
fn queue_is_explained_with_the_commands_to_run_next() {
    let sandbox = Sandbox::with_mails(2, 1);
    let found = sandbox.json(&["explain", "mails", "--measure", "0s"]);
    check("queue_explanation", &found);
    assert_eq!(found["reasons"][0]["code"], "no_worker", "{found}");
    assert_eq!(found["empty_in"]["state"], "unknown", "{found}");
    assert_eq!(found["keys"]["without_key"], 2, "{found}");
    sandbox.ok(&["queue", "pause", "mails"]);
    // Without a worker there is no rate to wait for.
    let text = sandbox.ok(&["explain", "mails", "--measure", "1h"]);
    assert!(text.starts_with("It has 2 jobs; the rate at which jobs end is unknown. Held up: "), "{text}");
    assert!(text.contains("; next: `jobqueue queue resume mails`\n"), "{text}");
    assert!(text.contains("; next: `jobqueue workers --all`\n"), "{text}");
    sandbox.ok(&["queue", "create", "letters"]);
    let empty = sandbox.json(&["explain", "letters"]);
    check("queue_explanation", &empty);
    assert_eq!(empty["empty_in"]["seconds"], 0.0, "{empty}");
    assert_eq!(sandbox.run(&["explain", "mails", "mails"]).status.code(), Some(3), "a job of this id");
    let both = sandbox.run(&["explain", "mails", "dead-0", "--measure", "1s"]);
    assert_eq!(both.status.code(), Some(2), "{}", error_text(&both));
}

#[test]
fn journal_of_workers_is_searched() {
    let sandbox = Sandbox::with_mails(0, 2);
    let found = sandbox.json(&["history", "--id", "dead-1", "--younger-than", "1d"]);
    check("history", &found);
    assert_eq!(found["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(found["jobs"][0]["outcome"], "dead_lettered");
    let table = sandbox.ok(&["history"]);
    let columns: Vec<_> = table.lines().next().unwrap().split_whitespace().collect();
    assert!(table.contains("rejected") && columns.contains(&"KEY"), "{table}");
    // newcomers 30, A10
    let since = |time: &str| sandbox.json(&["history", "--since", time, "--until", "2099-12-31T00:00:00Z"]);
    assert_eq!(since("2020-01-01T00:00:00Z")["jobs"].as_array().unwrap().len(), 2);
    assert_eq!(since("2099-01-01T00:00:00Z")["jobs"].as_array().unwrap().len(), 0);
    // newcomers 30, A16
    let unmatched = error_text(&sandbox.run(&["history", "--key", "nobody"]));
    assert!(unmatched.contains("no matching jobs in the journal"), "{unmatched}");
}

#[test]
fn storage_without_schedules_leaders_and_batches_has_empty_lists() {
    let sandbox = Sandbox::with_mails(0, 0);
    check("schedules", &sandbox.json(&["schedules", "list"]));
    check("leaders", &sandbox.json(&["leaders"]));
    check("batches", &sandbox.json(&["batches"]));
    assert_eq!(sandbox.run(&["schedules", "pause", "no-such-schedule"]).status.code(), Some(3));
}

#[test]
fn pause_without_an_end_is_not_confused_with_one_that_ends() {
    let sandbox = Sandbox::with_mails(0, 0);
    sandbox.ok(&["queue", "create", "mails"]);
    sandbox.ok(&["queue", "pause", "mails", "--for", "1h", "--operator", "ada"]);
    let refused = sandbox.run(&["queue", "pause", "mails"]);
    assert_eq!(refused.status.code(), Some(1), "{}", error_text(&refused));
    let error = error_text(&refused);
    assert!(error.contains("paused already until") && error.contains("by ada"), "{error}");
    assert!(error.contains("--replace"), "{error}");
    sandbox.ok(&["queue", "pause", "mails", "--replace"]);
    assert!(sandbox.json(&["queue", "show", "mails"])["pause"]["until"].is_null());
    assert_eq!(sandbox.json(&["queue", "pause", "mails"])["changed"], false);
}

// A script continues with the plan of a dry run. audit 25, operator C2
#[test]
fn dry_run_of_a_cancellation_ends_as_the_cancellation_would() {
    let sandbox = Sandbox::with_mails(1, 0);
    let waiting = sandbox.json(&["peek", "mails"])[0]["id"].as_str().unwrap().to_owned();
    let output = sandbox.run(&["cancel", "mails", &waiting, "no-such-job", "--dry-run"]);
    assert_eq!(output.status.code(), Some(1), "{}", error_text(&output));
    assert!(error_text(&output).contains("already ended, and left out: 1 job"), "{}", error_text(&output));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("1 job would be cancelled"));
}

// audit 25, operator C17
#[test]
fn queues_reports_that_the_records_of_workers_cannot_be_read() {
    let sandbox = Sandbox::with_mails(1, 1);
    assert!(sandbox.ok(&["queues"]).contains("no worker seen"));
    let rename = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('ALTER TABLE jobqueue_container RENAME TO away')";
    let file = sandbox.path("jobs.db");
    let done = Command::new("python3").args(["-c", rename]).arg(file).status().unwrap();
    assert!(done.success());
    let output = sandbox.run(&["queues"]);
    assert_eq!(output.status.code(), Some(0), "{}", error_text(&output));
    assert!(error_text(&output).contains("the records of workers cannot be read"), "{}", error_text(&output));
    // audit 28, operator C2: the next list erased the message.
    let mut watch = sandbox.command(&["queues", "--watch", "--interval", "100ms"]);
    let mut watching = watch.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let list = BufReader::new(watching.stdout.take().unwrap());
    let is_in_the_list =
        list.lines().take(20).any(|line| line.unwrap().contains("the records of workers cannot be read"));
    watching.kill().unwrap();
    let _ = watching.wait().unwrap();
    assert!(is_in_the_list);
}
