//! Sweeping as an action, and the clocks.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::maintenance::SweepOptions;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{ErrorKind, Storage};
use jobqueue_admin::{AccessLevel, Action, Admin, OperatorEvent, OperatorResult};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, payloads, task};

use crate::admin::support::{send, storages, watched};

#[tokio::test]
async fn sweep_is_told_and_its_dry_run_is_not_a_change() {
    for (storage, _folder) in storages().await {
        let (admin, events) = watched(&storage, AccessLevel::only([Action::Sweep]));
        assert_eq!(admin.sweep(SweepOptions::new()).await.unwrap().removed, 0);
        let told = events.lock().unwrap().clone();
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].action, Action::Sweep);
        assert_eq!((told[0].subject.as_str(), told[0].selection.as_str()), ("storage", "grace 86400s"));
        let reader = Admin::new(storage.clone());
        assert!(reader.sweep(SweepOptions::new().dry_run(true)).await.is_ok());
        assert_eq!(reader.sweep(SweepOptions::new()).await.unwrap_err().kind(), ErrorKind::Forbidden);
    }
}

#[tokio::test]
async fn clock_is_compared_with_the_storage_and_leaves_nothing_behind() {
    for (storage, _folder) in storages().await {
        let (admin, _) = watched(&storage, AccessLevel::only([Action::Inspect]));
        let skew = admin.clock_skew().await.unwrap();
        assert!(!skew.is_certain(), "one machine has one clock: {skew:?}");
        assert!(admin.all_workers().await.unwrap().is_empty());
        assert_eq!(admin.sweep(SweepOptions::new().dry_run(true)).await.unwrap().removed, 0);
        assert_eq!(Admin::new(storage).clock_skew().await.unwrap_err().kind(), ErrorKind::Forbidden);
    }
}

#[tokio::test]
async fn beginning_of_a_change_names_its_options() {
    let begun = Arc::<Mutex<Vec<String>>>::default();
    let sink = Arc::clone(&begun);
    let listen = move |event: &OperatorEvent| {
        if event.result == OperatorResult::Started {
            sink.lock().unwrap().push(event.selection.clone());
        }
    };
    let storage = Storage::memory();
    let admin = Admin::builder(storage).access(AccessLevel::Operate).on_event(listen).build();
    send(&admin, "mails", []).await;
    let sweep = SweepOptions::new().grace(Duration::from_secs(7_200)).drained_queues(true).limit(10);
    assert_eq!(admin.sweep(sweep).await.unwrap().removed, 0);
    let wanted = [("poisonthreshold", Some("3")), ("defaulttimeout", Some("90"))];
    admin.apply_settings(&admin.plan_settings("mails", wanted).await.unwrap()).await.unwrap();
    let begun = begun.lock().unwrap().clone();
    assert_eq!(
        begun[1..],
        ["grace 7200s, drained queues, at most 10", "defaulttimeout=90, poisonthreshold=3"]
    );
}

#[tokio::test(start_paused = true)]
async fn sweep_that_fails_says_what_it_has_removed() {
    let storage = in_memory();
    let large = Task { data: "x".repeat(100_000), ..task("a") };
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&large).ttl(Duration::from_secs(3_600)).await.unwrap();
    after(3 * 86_400).await;
    let faulty = Faulty::new(&storage);
    // That of the next container.
    faulty.on(Operation::ListBlobs, |call| {
        (call.nth > 1).then_some(Fault::Refuse(StoreErrorKind::Unauthorized))
    });
    let (admin, events) = watched(&faulty.storage(), AccessLevel::Operate);
    let failed = admin.sweep(SweepOptions::new()).await.unwrap_err();
    assert_eq!(payloads(&storage).await, 0);
    let text = failed.to_string();
    assert!(text.contains("1 of 1 blobs") && failed.source().is_some(), "{failed:?}");
    let event = events.lock().unwrap()[0].result.clone();
    assert!(matches!(&event, OperatorResult::Failed(why) if why.contains("1 of 1 blobs")), "{event:?}");
}
