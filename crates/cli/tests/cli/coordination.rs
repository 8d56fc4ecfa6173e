//! Lists of schedules, leaders, batches and groups that are not empty.

use std::process::Command;
use std::time::Duration;

use jobqueue::schedule::Schedule;
use jobqueue::{Context, JobError, SendOptions, Storage, Worker};

use crate::shape::check;
use crate::support::{Mail, Sandbox, error_text};

fn mail(number: usize) -> Mail {
    Mail { to: format!("{number}@example.org") }
}

pub(crate) fn with(sandbox: &Sandbox, work: impl AsyncFnOnce(Storage)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { work(Storage::connect(&sandbox.storage).await.unwrap()).await });
}

/// Runs a leader of a schedule until its record names the queue of its jobs.
async fn lead(storage: Storage) {
    let schedule = Schedule::cron("0 0 * * *", "Europe/Berlin").name("nightly");
    let worker = Worker::builder(storage.clone()).schedule_by(schedule, || mail(0)).build().unwrap();
    let admin = jobqueue_admin::Admin::new(storage);
    let has_queue = async {
        while admin.schedules().await.unwrap().iter().all(|schedule| schedule.queue.is_none()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let _ = worker
        .run_until(async { drop(tokio::time::timeout(Duration::from_secs(60), has_queue).await) })
        .await;
}

#[test]
fn schedules_are_listed_paused_triggered_and_resumed() {
    let sandbox = Sandbox::with_mails(0, 0);
    with(&sandbox, lead);
    let schedules = sandbox.json(&["schedules", "list"]);
    check("schedules", &schedules);
    assert_eq!(schedules[0]["name"], "nightly");
    assert_eq!(schedules[0]["queue"], "mails");
    assert!(sandbox.ok(&["schedules", "list"]).contains("0 0 * * * Europe/Berlin"));
    for (verb, changed) in
        [("pause", true), ("pause", false), ("trigger", true), ("trigger", false), ("resume", true)]
    {
        let answer = sandbox.json(&["schedules", verb, "nightly"]);
        check("schedule_change", &answer);
        assert_eq!(answer["changed"], changed, "{verb}");
        assert_eq!(answer["led"].as_bool(), (verb == "trigger").then_some(false), "{verb}");
    }
    let list = sandbox.ok(&["schedules", "list"]);
    assert!(list.contains("triggered") && list.contains("no leader"), "{list}");
    assert!(sandbox.ok(&["schedules", "trigger", "nightly"]).contains("no worker leads it"));
    let leaders = sandbox.json(&["leaders"]);
    check("leaders", &leaders);
    assert_eq!(leaders[0]["name"], "schedules/nightly");
    let holder = format!(":{}", std::process::id());
    assert!(leaders[0]["holder"].as_str().unwrap().ends_with(&holder), "{leaders}");
    assert!(sandbox.ok(&["leaders"]).contains(&holder));
}

#[test]
fn batch_shows_the_dead_child_that_blocks_it() {
    let sandbox = Sandbox::with_mails(0, 0);
    with(&sandbox, async |storage| {
        let mut batch = storage.batch("mosaic").await.unwrap();
        batch.send_all((0..3).map(mail)).await.unwrap();
        batch.then(&mail(9)).await.unwrap();
        let handler = async |mail: Mail| match mail.to.as_str() {
            "1@example.org" => Err(JobError::dead_letter("tile is missing")),
            _ => Ok(()),
        };
        let _ = Worker::builder(storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    });
    let batches = sandbox.json(&["batches"]);
    check("batches", &batches);
    let batch = sandbox.json(&["batches", "mosaic"]);
    check("batch_detail", &batch);
    assert_eq!(batch["done"], 2, "{batch}");
    assert_eq!(batch["open"][0]["place"], "dead", "{batch}");
    let text = sandbox.ok(&["batches", "mosaic"]);
    let list = sandbox.ok(&["batches"]);
    let row: Vec<_> = list.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..6], ["mosaic", "-", "3", "2", "0", "1"], "{list}");
    for part in [
        "waits for its children",
        "mosaic/1",
        "tile is missing",
        "`jobqueue dead redrive mails --id=mosaic/1 --source=/jobqueue/batch/",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    sandbox.ok(&["dead", "redrive", "mails", "--id", "mosaic/1"]);
    let batch = sandbox.json(&["batches", "mosaic"]);
    check("batch_detail", &batch);
    assert_eq!(batch["open"][0]["place"], "waiting");
    assert_eq!(batch["held_up"]["mails"]["reason"], "no_worker");
    assert!(sandbox.ok(&["batches", "mosaic"]).contains("\nmails is served by no worker"));
    sandbox.ok(&["queue", "pause", "mails"]);
    check("batch_detail", &sandbox.json(&["batches", "mosaic"]));
    assert!(sandbox.ok(&["batches", "mosaic"]).contains("\nmails is paused by "));
    assert!(sandbox.ok(&["queue", "resume", "mails"]).contains("no worker with a record serves it"));
}

// newcomers 28, B2: the batch was shown as waiting for its children. newcomers 34 d, 2-2: no dead letter was
// said to block it.
#[test]
fn batch_whose_continuation_is_dead_waits_for_no_child() {
    let sandbox = Sandbox::with_mails(0, 0);
    with(&sandbox, async |storage| {
        let mut batch = storage.batch("mosaic").await.unwrap();
        batch.send(&mail(0)).await.unwrap();
        batch.then(&mail(9)).await.unwrap();
        let handler = async |mail: Mail| match mail.to.as_str() {
            "9@example.org" => Err(JobError::dead_letter("the printer is gone")),
            _ => Ok(()),
        };
        let _ = Worker::builder(storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    });
    let text = sandbox.ok(&["batches", "mosaic"]);
    for part in [
        "its continuation is a dead letter",
        "dead letter of mails (the printer is gone), and blocks the batch until it is redriven: \
         `jobqueue dead redrive mails --id=mosaic --source=/jobqueue/batch/",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let list = sandbox.ok(&["batches"]);
    let row: Vec<_> = list.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..6], ["mosaic", "-", "1", "1", "0", "1"], "{list}");
    let batches = sandbox.json(&["batches"]);
    check("batches", &batches);
    assert_eq!(batches["batches"][0]["continuation_is_dead"], true, "{batches}");
    let batch = sandbox.json(&["batches", "mosaic"]);
    check("batch_detail", &batch);
    assert_eq!(batch["continuation"]["place"], "dead", "{batch}");
    sandbox.ok(&["dead", "redrive", "mails", "--id", "mosaic"]);
    let text = sandbox.ok(&["batches", "mosaic"]);
    assert!(text.contains("waits for its continuation"), "{text}");
    assert!(text.contains("is no dead letter: see `jobqueue explain --source=/jobqueue/batch/"), "{text}");
    with(&sandbox, async |storage| {
        storage.queues().clear(&"mails".parse().unwrap()).await.unwrap();
    });
    let text = sandbox.ok(&["batches", "mosaic"]);
    assert!(text.contains("The continuation is not in mails: it has just ended, was purged"), "{text}");
}

#[test]
fn command_for_a_dead_child_selects_only_that_child() {
    let sandbox = Sandbox::with_mails(0, 0);
    with(&sandbox, async |storage| {
        let mut batch = storage.batch("mosaic").await.unwrap();
        batch.send(&mail(0)).id("7; touch $(x) 'y'").source("/shop").await.unwrap();
        batch.then(&mail(9)).await.unwrap();
        let handler = async |_: Mail| Err::<(), _>(JobError::dead_letter("tile is missing"));
        let _ = Worker::builder(storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    });
    let text = sandbox.ok(&["batches", "mosaic"]);
    let command = text.split('`').nth(1).unwrap();
    // The words that a shell passes to the program.
    let line = command.replacen("jobqueue", "printf '%s\\n'", 1);
    let words = Command::new("sh").args(["-c", &line]).output().unwrap();
    let words = String::from_utf8(words.stdout).unwrap();
    assert_eq!(words, "dead\nredrive\nmails\n--id=7; touch $(x) 'y'\n--source=/shop\n", "{command}");
}

#[test]
fn batches_are_a_tree_that_leads_to_the_blocking_child() {
    let sandbox = Sandbox::with_mails(0, 0);
    with(&sandbox, async |storage| {
        let mut batch = storage.batch("newsletter").await.unwrap();
        batch.send_all((0..2).map(mail)).await.unwrap();
        batch.then(&mail(9)).await.unwrap();
        let handler = async |job: Mail, ctx: Context| match job.to.as_str() {
            "1@example.org" => {
                let mut inner = ctx.batch("region").await?;
                inner.send_all((5..7).map(mail)).await?;
                Ok(inner.then(&mail(8)).await?)
            }
            "6@example.org" => Err(JobError::dead_letter("tile is missing")),
            _ => Ok(()),
        };
        let _ = Worker::builder(storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    });
    check("batches", &sandbox.json(&["batches"]));
    let tree = sandbox.ok(&["batches"]);
    let lines: Vec<&str> =
        tree.lines().filter(|line| line.contains("newsletter") || line.contains("region")).collect();
    assert!(lines[0].contains("newsletter") && lines[1].contains("└ region"), "{tree}");
    let outer = sandbox.json(&["batches", "newsletter"]);
    check("batch_detail", &outer);
    assert_eq!(outer["open"][0]["batch"], "region");
    let text = sandbox.ok(&["batches", "newsletter"]);
    assert!(text.contains("in the batch region") && text.contains("`jobqueue batches region`"), "{text}");
    let text = sandbox.ok(&["batches", "region"]);
    assert!(
        text.contains("child 1 of the batch newsletter") && text.contains("dead redrive mails --id=region/1"),
        "{text}"
    );
}

#[test]
fn purge_of_a_child_says_that_its_batch_never_continues() {
    let sandbox = Sandbox::with_mails(0, 1);
    with(&sandbox, async |storage| {
        let mut batch = storage.batch("mosaic").await.unwrap();
        batch.send(&mail(0)).await.unwrap();
        batch.then(&mail(9)).await.unwrap();
        let handler = async |_: Mail| Err::<(), _>(JobError::dead_letter("tile is missing"));
        let _ = Worker::builder(storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    });
    let preview = sandbox.ok(&["dead", "purge", "mails", "--all", "--dry-run"]);
    assert!(preview.contains("batches wait for 1 of them, and would never continue"), "{preview}");
    let purged = sandbox.ok(&["dead", "purge", "mails", "--id", "mosaic/0", "--yes"]);
    assert!(purged.contains("batches wait for 1 of them, and never continue now"), "{purged}");
    let other = sandbox.ok(&["dead", "purge", "mails", "--all", "--yes"]);
    assert!(!other.contains("batches"), "{other}");
}

#[test]
fn groups_show_the_job_that_each_waits_for() {
    let sandbox = Sandbox::with_mails(0, 0);
    with(&sandbox, async |storage| {
        let queue = storage.queue::<Mail>().await.unwrap();
        for name in ["first", "second"] {
            let options = SendOptions::new().in_order().key("customer 7").id(name);
            let _ = queue.send(&mail(0)).with(options).await.unwrap();
        }
    });
    let groups = sandbox.json(&["groups", "mails"]);
    check("groups", &groups);
    assert_eq!(groups["groups"][0]["key"], "customer 7");
    assert_eq!(groups["complete"], true);
    let text = sandbox.ok(&["groups", "mails"]);
    let second = text.lines().find(|line| line.contains(" 2 ")).unwrap();
    assert!(second.contains("second") && second.contains("first") && second.contains("waits"), "{text}");
    assert_eq!(sandbox.run(&["groups", "no-such-queue"]).status.code(), Some(3));
}

// incident 33, 6: with many keys it printed all.
#[test]
fn groups_say_how_many_a_limit_leaves_out() {
    let sandbox = Sandbox::with_mails(0, 0);
    with(&sandbox, async |storage| {
        let queue = storage.queue::<Mail>().await.unwrap();
        for number in 0..101 {
            let options = SendOptions::new().in_order().key(format!("customer {number}"));
            let _ = queue.send(&mail(number)).with(options).await.unwrap();
        }
    });
    for (limit, listed) in [(&[][..], 100), (&["--limit", "2"], 2)] {
        let output = sandbox.run(&[&["groups", "mails", "--output", "json"], limit].concat());
        let groups: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        check("groups", &groups);
        assert_eq!(groups["groups"].as_array().unwrap().len(), listed);
        assert_eq!(groups["found"], 101);
        let text = format!("101 groups have jobs, of which {} are left out", 101 - listed);
        assert!(error_text(&output).contains(&text), "{}", error_text(&output));
    }
}
