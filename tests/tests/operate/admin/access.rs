//! Access levels and events: nothing changes without permission, and nothing changes in silence.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use jobqueue::maintenance::SweepOptions;
use jobqueue::storage::{BlobName, Operation, PutBlob, StoreErrorKind};
use jobqueue::{Error, ErrorKind, JobError, Storage, Worker};
use jobqueue_admin::{
    AccessLevel, Action, Admin, DeadLetterFilter, JobReference, OperatorEvent, OperatorResult, RawSend,
};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::Task;
use jobqueue_tests::log::Broken;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::admin::support::{operator, send, watched};

/// Takes an action on the queue `mails`.
async fn take(admin: &Admin, action: Action) -> Result<(), Error> {
    match action {
        Action::CreateQueue => admin.create_queue("other").await.map(drop),
        Action::Send => admin.send("mails", RawSend::json("mail", "{}")?).await.map(drop),
        Action::Pause => admin.pause("mails").await.map(drop),
        Action::Resume => admin.resume("mails").await.map(drop),
        Action::ChangeSettings => {
            let plan = admin.plan_settings("mails", [("poisonthreshold", Some("3"))]).await?;
            admin.apply_settings(&plan).await
        }
        Action::Cancel => admin.cancel(&JobReference::new("mails", "1")).await.map(drop),
        Action::RunNow => admin.run_now(&JobReference::new("mails", "later")).await.map(drop),
        Action::Inspect => admin.inspect("mails", 10).await.map(drop),
        Action::Redrive => admin.redrive("mails").filter(DeadLetterFilter::all()).run().await.map(drop),
        Action::Purge => admin.purge("mails").filter(DeadLetterFilter::all()).run().await.map(drop),
        Action::TriggerSchedule => admin.trigger_schedule("hourly").await.map(drop),
        Action::PauseSchedule => admin.pause_schedule("hourly").await.map(drop),
        Action::Sweep => admin.sweep(SweepOptions::new()).await.map(drop),
        Action::ResumeSchedule => admin.resume_schedule("hourly").await.map(drop),
        other => panic!("no case for {other}"),
    }
}

/// Returns a storage with a queue, a job and a schedule.
async fn storage() -> Storage {
    let storage = Storage::memory();
    send(&operator(&storage), "mails", ["1".to_owned()]).await;
    let schedule = "{\"done\":1767225600000,\"pending\":null}";
    let blob = BlobName::new("jobqueue-schedules".parse().unwrap(), "hourly").unwrap();
    storage.blobs().create_container(blob.container()).await.unwrap();
    let _ = storage.blobs().put_blob(&blob, schedule.into(), PutBlob::new()).await.unwrap();
    storage
}

#[tokio::test]
async fn each_action_needs_its_own_permission_and_is_told() {
    for action in Action::ALL.iter().copied() {
        let storage = storage().await;
        let others = Action::ALL.iter().copied().filter(|other| *other != action);
        let levels = [
            (AccessLevel::ReadOnly, false),
            (AccessLevel::only(others), false),
            (AccessLevel::only([action]), true),
        ];
        for (level, allowed) in levels {
            let before = format!("{:?}", operator(&storage).queues().await.unwrap());
            let (admin, events) = watched(&storage, level);
            let result = take(&admin, action).await;
            let events = events.lock().unwrap().clone();
            assert_eq!(events.len(), 1, "{action}");
            assert_eq!(events[0].operator.as_str(), "ada");
            assert_eq!(events[0].action, action);
            if allowed {
                result.unwrap();
                assert!(matches!(events[0].result, OperatorResult::Done(_)), "{events:?}");
            } else {
                assert_eq!(result.unwrap_err().kind(), ErrorKind::Forbidden, "{action}");
                assert!(matches!(events[0].result, OperatorResult::Refused(_)), "{events:?}");
                let after = format!("{:?}", operator(&storage).queues().await.unwrap());
                let cut = |text: &str| text.split("oldest").next().unwrap_or_default().to_owned();
                assert_eq!(cut(&after), cut(&before), "{action} changed something");
            }
        }
    }
}

#[tokio::test]
async fn preview_needs_the_permission_to_inspect_only() {
    let storage = storage().await;
    let (admin, _) = watched(&storage, AccessLevel::only([Action::Inspect]));
    let _ = admin.purge("mails").filter(DeadLetterFilter::all()).dry_run(true).run().await.unwrap();
    assert!(admin.purge("mails").filter(DeadLetterFilter::all()).run().await.is_err());
    let (reader, _) = watched(&storage, AccessLevel::ReadOnly);
    assert!(reader.purge("mails").filter(DeadLetterFilter::all()).dry_run(true).run().await.is_err());
    assert!(reader.dead_letters("mails", &DeadLetterFilter::new()).await.is_ok());
}

#[tokio::test]
async fn another_operator_gets_no_more_than_the_view_has() {
    let storage = storage().await;
    let (admin, events) = watched(&storage, AccessLevel::only([Action::Pause]));
    let bob = admin.acting_as("bob", &AccessLevel::Operate);
    assert!(bob.pause("mails").await.is_ok() && bob.resume("mails").await.is_err());
    let eve = admin.acting_as("eve", &AccessLevel::ReadOnly);
    assert!(eve.pause("mails").await.is_err());
    let operators: BTreeSet<_> = events.lock().unwrap().iter().map(|event| event.operator.clone()).collect();
    assert_eq!(operators, ["bob".to_owned(), "eve".to_owned()].into());
    assert!(Admin::new(storage).pause("mails").await.is_err(), "a view reads only unless told otherwise");
}

/// Returns an operator whose audit fails at the events that `fails` names, and what the audit has.
fn audited(storage: &Storage, fails: fn(&OperatorEvent) -> bool) -> (Admin, Arc<Mutex<Vec<OperatorEvent>>>) {
    let events: Arc<Mutex<Vec<OperatorEvent>>> = Arc::default();
    let sink = Arc::clone(&events);
    let audit = move |event: &OperatorEvent| match fails(event) {
        true => Err("the disk is full".into()),
        false => {
            sink.lock().unwrap().push(event.clone());
            Ok(())
        }
    };
    (
        Admin::builder(storage.clone()).access(AccessLevel::Operate).operator("ada").audit(audit).build(),
        events,
    )
}

/// Returns a storage with three dead letters in the queue `mails`.
async fn with_dead_letters() -> Storage {
    let storage = Storage::memory();
    send(&operator(&storage), "mails", ["a", "b", "c"].map(str::to_owned)).await;
    let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("never"));
    let worker = Worker::builder(storage.clone()).circuit_breaker(None).handle_on("mails", handler);
    assert_eq!(worker.build().unwrap().run_until_idle().await.unwrap().dead_lettered, 3);
    storage
}

#[tokio::test]
async fn an_audit_has_filter_and_jobs_before_and_after_the_deed() {
    let storage = with_dead_letters().await;
    let (admin, events) = audited(&storage, |_| false);
    let filter = DeadLetterFilter::new().ids(["a", "b"]).kind("task");
    let plan = admin.purge("mails").filter(filter.clone()).dry_run(true).run().await.unwrap().plan();
    let report = admin.purge("mails").plan(plan.clone()).run().await.unwrap();
    assert_eq!(report.count, 2);
    let _ =
        admin.redrive("mails").filter(DeadLetterFilter::all()).limit(5).per_second(50).run().await.unwrap();

    let events = events.lock().unwrap().clone();
    let [look, looked, purge, purged, redrive, redriven] = events.try_into().unwrap();
    for (begin, end) in [(&look, &looked), (&purge, &purged), (&redrive, &redriven)] {
        assert_eq!(begin.result, OperatorResult::Started);
        assert!(matches!(end.result, OperatorResult::Done(_)), "{end:?}");
        assert_eq!((&begin.id, &begin.selection), (&end.id, &end.selection));
    }
    assert!(look.id != purge.id && purge.id != redrive.id);
    assert_eq!(look.selection, "kind \"task\", ids [\"a\", \"b\"]");
    assert!(looked.jobs.is_empty(), "a look changes none");
    assert_eq!((purge.selection.as_str(), &purge.jobs), ("a plan of 2 dead letters", &report.jobs));
    assert_eq!(purged.jobs, report.jobs);
    assert_eq!(redrive.selection, "all, at most 5, at most 50 a second");
    assert!(redrive.jobs.is_empty() && redriven.jobs.len() == 1 && redriven.jobs[0].id == "c");
}

#[tokio::test]
async fn action_that_the_audit_cannot_record_is_not_done() {
    let storage = with_dead_letters().await;
    let (admin, events) = audited(&storage, |event| event.result == OperatorResult::Started);
    let purge = || admin.purge("mails").filter(DeadLetterFilter::all()).run();
    let error = purge().await.unwrap_err();
    assert!(error.to_string().starts_with("nothing was changed"), "{error}");
    assert_eq!(admin.queue("mails").await.unwrap().dead_letters, Some(3));
    let recorded = events.lock().unwrap().clone();
    // The recorder may have kept the beginning.
    assert!(
        matches!(&recorded[..], [end] if matches!(end.result, OperatorResult::Failed(_))),
        "{recorded:?}"
    );

    let (admin, events) = audited(&storage, |event| matches!(event.result, OperatorResult::Done(_)));
    let error = admin.purge("mails").filter(DeadLetterFilter::all()).run().await.unwrap_err();
    assert!(error.to_string().contains("the action was done (3 deleted, 0 skipped)"), "{error}");
    assert_eq!(admin.queue("mails").await.unwrap().dead_letters, Some(0));
    assert_eq!(events.lock().unwrap().len(), 1, "its beginning is recorded");
}

#[tokio::test]
async fn stop_that_cannot_be_recorded_stops_nevertheless() {
    let (admin, _) = audited(&storage().await, |event| event.result == OperatorResult::Started);
    let token = CancellationToken::new();
    let error = admin.stop(Action::Purge, "operation 1 on dead letters of mails", &token).await.unwrap_err();
    assert!(error.to_string().contains("could not be recorded"), "{error}");
    assert!(token.is_cancelled());
    let viewer = Admin::new(admin.storage().clone());
    let token = CancellationToken::new();
    let refused =
        viewer.stop(Action::Purge, "operation 1 on dead letters of mails", &token).await.unwrap_err();
    assert_eq!((refused.kind(), token.is_cancelled()), (ErrorKind::Forbidden, false));
}

// K43
#[tokio::test]
async fn send_in_doubt_names_the_job_in_its_error_and_in_the_audit() {
    let faulty = Faulty::new(&storage().await);
    let (admin, events) = audited(&faulty.storage(), |_| false);
    faulty.plan_always(Operation::Put, Fault::DropAnswer(StoreErrorKind::Timeout));
    let job = RawSend::json("task", "{}").unwrap();
    let error = admin.send("mails", job).await.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    let events = events.lock().unwrap();
    for event in &*events {
        assert_eq!(event.jobs.len(), 1, "{event:?}");
        assert!(error.to_string().contains(&event.jobs[0].id), "{error}: {event:?}");
    }
    assert!(matches!(events[1].result, OperatorResult::Failed(_)));
}

#[tokio::test]
async fn failures_and_interruptions_are_told() {
    let storage = storage().await;
    let (admin, events) = watched(&storage, AccessLevel::Operate);
    assert!(admin.pause("missing").await.is_err());
    for _ in 0..3 {
        let _ = admin.send("mails", RawSend::json("task", "{}").unwrap()).await.unwrap();
    }
    let handler = async |_: Task| Ok::<_, JobError>(());
    let worker = Worker::builder(storage.clone()).handle_on("mails", handler).build().unwrap();
    assert!(worker.run_until_idle().await.unwrap().dead_lettered > 1, "none is valid");
    events.lock().unwrap().retain(|event| event.action == Action::Pause);
    // One a second: dropped after the first.
    let first = Notify::new();
    let redrive = admin
        .redrive("mails")
        .filter(DeadLetterFilter::all())
        .per_second(1)
        .on_progress(|_| first.notify_one())
        .run();
    tokio::select! {
        biased;
        () = first.notified() => {}
        report = redrive => panic!("{report:?}"),
    }
    let events = events.lock().unwrap().clone();
    let results: Vec<_> = events.iter().map(|event| event.result.clone()).collect();
    assert!(matches!(&results[0], OperatorResult::Failed(text) if text.contains("missing")), "{results:?}");
    assert_eq!(results[1..], [OperatorResult::Interrupted]);
    let json = serde_json::to_value(&events[0]).unwrap();
    assert_eq!(json["result"].as_str(), Some("failed"));
    assert_eq!(json["action"].as_str(), Some("pause"));
}

#[tokio::test]
async fn listener_that_panics_does_not_stop_the_action() {
    let storage = storage().await;
    let silent = Admin::builder(storage).access(AccessLevel::Operate).on_event(|_| panic!("planted")).build();
    assert!(silent.pause("mails").await.is_ok());
}

#[tokio::test]
async fn subscriber_that_panics_hinders_no_action_and_no_audit() {
    let _broken = tracing::subscriber::set_default(Broken);
    let storage = with_dead_letters().await;
    let (admin, events) = audited(&storage, |_| false);
    assert!(admin.pause("mails").await.unwrap());
    let report = admin.purge("mails").filter(DeadLetterFilter::all()).run().await.unwrap();
    assert_eq!(report.count, 3);
    let reader = admin.acting_as("eve", &AccessLevel::ReadOnly);
    assert_eq!(reader.resume("mails").await.unwrap_err().kind(), ErrorKind::Forbidden);
    let events = events.lock().unwrap();
    let results: Vec<_> = events.iter().map(|event| &event.result).collect();
    use OperatorResult::{Done, Refused, Started};
    assert!(matches!(results[..], [Started, Done(_), Started, Done(_), Refused(_)]), "{results:?}");
}
