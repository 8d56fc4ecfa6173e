//! Jobs as raw data, and jobs that are sent without their type.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::settings::Metadata;
use jobqueue::storage::{Operation, PutMessage, StoreErrorKind};
use jobqueue::{Context, ErrorKind, JobError, QueueMessage, SendOptions, Storage, Worker};
use jobqueue_admin::{DeadLetterFilter, JobFilter, JobReference, JobState, RawPayload, RawSend};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, worker};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::admin::support::{operator, send, storages};

#[tokio::test]
async fn job_is_shown_with_all_that_its_message_says() {
    for (storage, _folder) in storages().await {
        let admin = operator(&storage);
        send(&admin, "mails", []).await;
        let options = SendOptions::new().header("tenant", "blue");
        let job =
            RawSend::json("mail", r#"{"to": "ada"}"#).unwrap().id("7").key("ada").version(3).with(options);
        let sent = admin.send("mails", job).await.unwrap();
        assert_eq!(sent.id.as_str(), "7");
        assert_eq!(sent.source.as_deref(), Some("/jobqueue/admin"));
        let [job] = &admin.peek("mails").await.unwrap()[..] else { panic!("one job") };
        assert_eq!(job.id.as_str(), "7");
        assert_eq!(job.kind.as_str(), "mail");
        assert_eq!(job.version, Some(3));
        assert_eq!(job.key.as_deref(), Some("ada"));
        assert_eq!(job.state, JobState::Waiting);
        assert_eq!(job.attempts, 0);
        assert_eq!(job.headers["tenant"], "blue");
        assert!(job.trace.is_some() && job.sent.is_some() && job.inserted.is_some() && job.problem.is_none());
        let json = serde_json::to_value(job).unwrap();
        assert_eq!(json["payload"], serde_json::json!({"form": "json", "value": {"to": "ada"}}));
        assert_eq!(json["state"], "waiting");
    }
}

// I20, round 31, ops B1
#[tokio::test(start_paused = true)]
async fn debug_forms_show_no_payload_and_no_checkpoint() {
    const SECRET: &str = "s3cret-freight";
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    for name in ["waits", "dies"] {
        let task = Task { name: name.into(), data: SECRET.into() };
        let _ = queue.send(&task).with(SendOptions::new().id(name)).await.unwrap();
    }
    let handler = |task: Task, ctx: Context| async move {
        ctx.checkpoint(SECRET).await?;
        match task.name.as_str() {
            "dies" => Err(JobError::dead_letter("no")),
            "waits" => Err(JobError::retry_after(Duration::from_secs(3_600), "later")),
            _ => Ok(()),
        }
    };
    let _ = worker(&storage).handle(handler).build().unwrap().run_until(after(5)).await.unwrap();
    let rubbish = PutMessage::new(format!("rubbish {SECRET}"));
    let _ = storage.queues().put(&"tasks".parse().unwrap(), rubbish).await.unwrap();
    let admin = operator(&storage);
    let peeked = admin.peek("tasks").await.unwrap();
    let page = admin.jobs("tasks", JobState::BackingOff, &JobFilter::new()).await.unwrap();
    let letters = admin.dead_letters("tasks", &DeadLetterFilter::new()).await.unwrap();
    let explained = admin.explain(&JobReference::new("tasks", "dies")).await.unwrap();
    let payload = admin.payload(&page.jobs[0]).await.unwrap();
    let checkpoint = admin.checkpoint(&page.jobs[0]).await.unwrap();
    let written = [
        serde_json::to_string(&peeked),
        serde_json::to_string(&page),
        serde_json::to_string(&letters),
        serde_json::to_string(&explained),
        serde_json::to_string(&payload),
        serde_json::to_string(&checkpoint),
    ];
    for text in written.map(Result::unwrap) {
        assert!(text.contains(SECRET), "{text}");
    }
    let json = RawSend::json("task", &format!("{{\"data\":\"{SECRET}\"}}")).unwrap();
    let bytes = RawSend::bytes("task", "text/plain", SECRET).unwrap();
    let copy = RawSend::copy_of(&letters.letters[0], payload.clone()).unwrap();
    let shown = format!(
        "{peeked:?} {page:?} {letters:?} {explained:?} {payload:?} {checkpoint:?} {json:?} {bytes:?} {copy:?}"
    );
    assert!(shown.contains("waits") && !shown.contains(SECRET), "{shown}");
}

#[tokio::test]
async fn payload_in_a_blob_is_read_on_request() {
    let (storage, _) = storages().await.remove(0);
    let admin = operator(&storage);
    send(&admin, "mails", []).await;
    let large = format!("\"{}\"", "x".repeat(100_000));
    let _ = admin.send("mails", RawSend::json("mail", &large).unwrap()).await.unwrap();
    let [job] = &admin.peek("mails").await.unwrap()[..] else { panic!("one job") };
    let RawPayload::Blob(reference) = &job.payload else { panic!("{:?}", job.payload) };
    assert_eq!(reference.bytes, large.len() as u64);
    let RawPayload::Json(json) = admin.payload(job).await.unwrap() else { panic!("JSON") };
    assert_eq!(json.get(), large);
    let container = "jobqueue-payloads".parse().unwrap();
    storage.blobs().delete_container(&container).await.unwrap();
    assert_eq!(admin.payload(job).await.unwrap_err().kind(), ErrorKind::Undecodable);
}

#[tokio::test]
async fn texts_from_anybody_are_shown_and_break_nothing() {
    let hostile = [
        "<script>alert(1)</script>",
        "{\"specversion\":\"1.0\",\"id\":\"\u{202e}\",\"source\":\"/s\",\"type\":\"<b>\",\"data\":{}}",
        "{\"specversion\":\"1.0\"}",
        "{\"specversion\":\"1.0\",\"id\":\"1\",\"source\":\"/s\",\"type\":\"t\",\"dataref\":\"../../etc/passwd\"}",
        "{\"a\":1}",
        "[[[[[[[[[[",
        "\u{feff}",
        "AAECAw==",
    ];
    for (storage, _folder) in storages().await {
        let admin = operator(&storage);
        send(&admin, "mails", []).await;
        let queue = "mails".parse().unwrap();
        for text in hostile {
            let _ = storage.queues().put(&queue, PutMessage::new(text)).await.unwrap();
        }
        let deep = "[".repeat(60_000);
        let _ = storage.queues().put(&queue, PutMessage::new(deep)).await.unwrap();
        let jobs = admin.peek("mails").await.unwrap();
        assert_eq!(jobs.len(), hostile.len() + 1);
        assert_eq!(jobs.iter().filter(|job| job.problem.is_none()).count(), 1, "one is an event");
        for job in &jobs {
            let json = serde_json::to_string(job).unwrap();
            assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok());
            assert!(!job.id.is_empty());
        }
    }
}

// D37
#[tokio::test(start_paused = true)]
async fn a_look_that_is_told_to_stop_hides_nothing() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let stop = CancellationToken::new();
    let admin = operator(&storage);
    send(&admin, "tasks", (0..100).map(|n| n.to_string())).await;
    let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("planted"));
    send(&admin, "dead", (0..100).map(|n| n.to_string())).await;
    let worker = worker(&storage).handle_on("dead", handler).build().unwrap();
    let _ = worker.run_until_idle().await.unwrap();
    // The stop comes while the first messages are on their way.
    let fired = stop.clone();
    faulty.on(Operation::Get, move |_| {
        fired.cancel();
        None
    });
    let page = admin.stop_when(stop.clone()).search_dead_letters("dead", &DeadLetterFilter::new(), 100).await;
    let page = page.unwrap();
    assert!(page.looked_at <= 32 && !page.complete, "{page:?}");
    assert!(admin.stop_when(stop).inspect("tasks", 100).await.unwrap().is_empty());
    assert_eq!(admin.search_dead_letters("dead", &DeadLetterFilter::new(), 100).await.unwrap().matching, 100);
    assert_eq!(admin.inspect("tasks", 100).await.unwrap().len(), 100);
}

// Round 29, `inspect`
#[tokio::test(start_paused = true)]
async fn request_that_fails_ends_no_inspection() {
    let faulty = Faulty::new(&in_memory());
    let admin = operator(&faulty.storage());
    send(&admin, "tasks", (0..100).map(|n| n.to_string())).await;
    // It counts, and cannot be received.
    let delayed =
        RawSend::json("task", "{}").unwrap().with(SendOptions::new().delay(Duration::from_secs(3600)));
    let _ = admin.send("tasks", delayed).await.unwrap();
    for fault in [
        Fault::Refuse(StoreErrorKind::Unavailable),
        Fault::ThrottleInDoubt { retry_after: Duration::from_secs(1), applied: false },
    ] {
        faulty.plan(Operation::Get, 2, fault);
        faulty.plan(Operation::Get, 3, fault);
        assert_eq!(admin.inspect("tasks", 1000).await.unwrap().len(), 100, "{fault:?}");
    }
    // This one has leased 32 messages.
    faulty.plan(Operation::Get, 2, Fault::DropAnswer(StoreErrorKind::Timeout));
    let error = admin.inspect("tasks", 1000).await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("may have hidden some"), "{error}");
}

#[tokio::test]
async fn inspecting_shows_more_than_a_peek_and_costs_no_delivery() {
    for (storage, _folder) in storages().await {
        let admin = operator(&storage);
        send(&admin, "tasks", (0..70).map(|n| n.to_string())).await;
        for _ in 0..3 {
            let jobs = admin.inspect("tasks", 1000).await.unwrap();
            let ids: BTreeSet<_> = jobs.iter().map(|job| job.id.as_str()).collect();
            assert_eq!(jobs.len(), 70);
            assert_eq!(ids.len(), 70);
        }
        assert_eq!(admin.inspect("tasks", 40).await.unwrap().len(), 40);
        // All are visible again, and none has lost an attempt.
        let queue = "tasks".parse().unwrap();
        storage
            .queues()
            .set_queue_metadata(&queue, &[("maxdeliveries", "1")].into_iter().collect())
            .await
            .unwrap();
        let handler = async |_: Task| Ok::<_, JobError>(());
        let worker = jobqueue::Worker::builder(storage.clone()).handle_on("tasks", handler).build().unwrap();
        let report = worker.run_until_idle().await.unwrap();
        assert_eq!(report.completed, 70);
        assert_eq!(report.dead_lettered, 0);
    }
}

#[tokio::test]
async fn only_events_are_sent_and_they_run_as_any_job() {
    let (storage, _) = storages().await.remove(0);
    let admin = operator(&storage);
    for bad in ["", "{}", "[]", "{\"specversion\":\"1.0\",\"type\":\"t\"}", "not json"] {
        assert_eq!(RawSend::event(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
    }
    let blob = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t",
        "dataref":"20260101/mails/0f0f0f0f-0000-4000-8000-000000000000","datasize":1,
        "datasha256":"0000000000000000000000000000000000000000000000000000000000000000"}"#;
    assert!(RawSend::event(blob).is_err(), "nobody refers to another job's payload");
    assert!(RawSend::json("mail", "{").is_err() && RawSend::json("", "{}").is_err());
    let event = r#"{"specversion":"1.0","id":"1","source":"/shop","type":"task","attempts":4,"excused":9,"schemaversion":1,
        "data":{"name":"one","data":""}}"#;
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = admin.send(queue.name().as_str(), RawSend::event(event).unwrap()).await.unwrap();
    let [job] = &admin.peek(queue.name().as_str()).await.unwrap()[..] else { panic!("one job") };
    assert_eq!(job.source.as_str(), "/shop", "no history of somebody else's");
    assert_eq!(job.attempts, 0, "no history of somebody else's");
    let handler = async |task: Task| {
        assert_eq!(task.name, "one");
        Ok::<_, JobError>(())
    };
    let report = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
    let late = SendOptions::new().delay(Duration::from_secs(3600));
    let _ = admin.send(queue.name().as_str(), RawSend::event(event).unwrap().with(late)).await.unwrap();
    assert!(admin.peek(queue.name().as_str()).await.unwrap().is_empty(), "it is delayed");
}

#[tokio::test]
async fn copy_keeps_the_attributes_of_its_sender_and_their_types() {
    let (storage, _) = storages().await.remove(0);
    let admin = operator(&storage);
    send(&admin, "mails", []).await;
    let event = r#"{"specversion":"1.0","id":"1","source":"/shop","type":"mail","tries":7,"urgent":true,"batchno":1,
        "batchid":"b","batchindex":0,"inorder":"1","key":"ada","data":{}}"#;
    let queue = "mails".parse().unwrap();
    let _ = storage.queues().put(&queue, PutMessage::new(event)).await.unwrap();
    let [job] = &admin.peek("mails").await.unwrap()[..] else { panic!("one job") };
    let copy = RawSend::copy_of(job, job.payload.clone()).unwrap();
    let _ = admin.create_queue("other").await.unwrap();
    let _ = admin.send("other", copy).await.unwrap();
    let texts = storage.queues().peek(&"other".parse().unwrap(), 1).await.unwrap();
    let sent: serde_json::Value = serde_json::from_str(texts[0].text.as_ref().unwrap()).unwrap();
    assert_eq!(
        (&sent["tries"], &sent["urgent"], &sent["batchno"]),
        (&7.into(), &true.into(), &1.into()),
        "{sent}"
    );
    assert!(sent.get("batchid").is_none() && sent.get("batchindex").is_none(), "{sent}");
    assert_eq!((&sent["source"], &sent["key"]), (&"/shop".into(), &"ada".into()));
}

/// An event of another producer may have two payloads, of which a worker reads the second.
// audit 23, sending C2
#[tokio::test]
async fn copy_with_another_payload_has_no_other() {
    let storage = Storage::memory();
    let admin = operator(&storage);
    send(&admin, "mails", []).await;
    let queue = "mails".parse().unwrap();
    let (digest, blob) = ("0".repeat(64), "20261126/mails/0f8fad5b-d9cb-469f-a165-70867728950e");
    for member in [r#""data":{"to":"old"}"#, r#""data_base64":"e30=""#] {
        let event = format!(
            r#"{{"specversion":"1.0","id":"1","source":"/s","type":"mail","dataref":"{blob}","datasize":12,"datasha256":"{digest}",{member}}}"#
        );
        let _ = storage.queues().put(&queue, PutMessage::new(event)).await.unwrap();
        let [job] = &admin.peek("mails").await.unwrap()[..] else { panic!("one job") };
        let mended = RawPayload::Json(serde_json::from_str(r#"{"to":"new"}"#).unwrap());
        let copy = RawSend::copy_of(job, mended).unwrap();
        storage.queues().clear(&queue).await.unwrap();
        let _ = admin.send("mails", copy).await.unwrap();
        let text = storage.queues().peek(&queue, 1).await.unwrap().remove(0).text.unwrap();
        assert!(text.contains(r#""data":{"to":"new"}"#), "{text}");
        assert!(!text.contains("old") && !text.contains("data_base64"), "{text}");
        storage.queues().clear(&queue).await.unwrap();
    }
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "notes", kind = "note")]
struct NoteV1 {
    to: String,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "notes", kind = "note", version = 2, upgrade_from = NoteV1)]
struct Note {
    to: String,
    cc: Option<String>,
}

impl From<NoteV1> for Note {
    fn from(old: NoteV1) -> Self {
        Self { to: old.to, cc: None }
    }
}

#[tokio::test]
async fn job_without_a_version_is_read_as_the_newest_that_fits() {
    let storage = Storage::memory();
    let admin = operator(&storage);
    send(&admin, "notes", []).await;
    let note = || RawSend::json("note", r#"{"to":"ada","cc":"bob"}"#).unwrap();
    let bytes = RawSend::bytes("note", "application/json", r#"{"to":"ada","cc":"eve"}"#).unwrap();
    for job in [note(), bytes, note().version(1)] {
        let _ = admin.send("notes", job).await.unwrap();
    }
    let seen = Arc::<Mutex<Vec<_>>>::default();
    let copies = Arc::clone(&seen);
    let handler = move |note: Note| {
        copies.lock().unwrap().push(note.cc);
        async { Ok::<(), JobError>(()) }
    };
    let worker = Worker::builder(storage).concurrency(1).handle(handler).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 3);
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen, [Some("bob".to_owned()), Some("eve".to_owned()), None]);
}

#[tokio::test]
async fn copy_of_a_dead_letter_is_looked_at() {
    for (storage, _folder) in storages().await {
        let admin = operator(&storage);
        send(&admin, "mails", ["1".to_owned()]).await;
        let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("never"));
        let worker = jobqueue::Worker::builder(storage.clone()).handle_on("mails", handler);
        let _ = worker.build().unwrap().run_until_idle().await.unwrap();
        let dead = "mails-poison".parse().unwrap();
        let text = storage.queues().peek(&dead, 1).await.unwrap().remove(0).text.unwrap();
        storage.queues().put(&dead, PutMessage::new(text)).await.unwrap();
        let page = admin.dead_letters("mails", &DeadLetterFilter::all()).await.unwrap();
        assert_eq!(page.letters.len(), 1);
        assert_eq!(page.looked_at, 2);
        assert!(page.complete);
    }
}

/// An operator copies the text of a dead letter into the queue, as the tools of Azure do: a worker begins it
/// anew.
#[tokio::test]
async fn history_that_no_worker_wrote_is_shown_as_none() {
    for (storage, _folder) in storages().await {
        let admin = operator(&storage);
        send(&admin, "mails", ["7".to_owned()]).await;
        let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("no such host"));
        let worker = Worker::builder(storage.clone()).handle_on("mails", handler).build().unwrap();
        let _ = worker.run_until_idle().await.unwrap();
        let (queue, dead) = ("mails".parse().unwrap(), "mails-poison".parse().unwrap());
        let text = storage.queues().peek(&dead, 1).await.unwrap().remove(0).text.unwrap();
        for letter in [
            admin.peek("mails-poison").await.unwrap().remove(0),
            admin.inspect("mails-poison", 1).await.unwrap().remove(0),
        ] {
            assert!(letter.last_error.is_some() && letter.dead.is_some(), "{letter:?}");
        }
        storage.queues().put(&queue, PutMessage::new(text)).await.unwrap();
        let threshold = Metadata::new().with("poisonthreshold", "1");
        storage.queues().set_queue_metadata(&queue, &threshold).await.unwrap();

        let found = admin.explain(&JobReference::new("mails", "7")).await.unwrap();
        let ends =
            found.reasons.iter().filter(|why| ["dead_letter", "attempts_exhausted"].contains(&why.code));
        assert_eq!(ends.count(), 0, "{found:?}");
        let by_error = JobFilter::new().error("no such host");
        assert!(admin.jobs("mails", JobState::Waiting, &by_error).await.unwrap().jobs.is_empty());
        let shown = [
            found.message.unwrap(),
            admin.peek("mails").await.unwrap().remove(0),
            admin.inspect("mails", 1).await.unwrap().remove(0),
        ];
        for job in shown {
            assert_eq!(job.attempts, 0, "{job:?}");
            assert!(job.last_error.is_none() && job.dead.is_none(), "{job:?}");
        }
    }
}
