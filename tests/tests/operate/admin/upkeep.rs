//! Sweeping as an action, and the clocks.

use jobqueue::maintenance::SweepOptions;
use jobqueue::{ErrorKind, Storage};
use jobqueue_admin::{AccessLevel, Action, Admin};

use crate::admin::support::{storages, watched};

#[tokio::test]
async fn sweep_is_told_and_its_dry_run_is_not_a_change() {
    for (storage, _folder) in storages().await {
        let (admin, events) = watched(&storage, AccessLevel::only([Action::Sweep]));
        assert_eq!(admin.sweep(SweepOptions::new()).await.unwrap().removed, 0);
        let told = events.lock().unwrap().clone();
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].action, Action::Sweep);
        assert_eq!(told[0].subject.as_str(), "storage");
        let reader = Admin::new(storage.clone());
        assert!(reader.sweep(SweepOptions::new().dry_run(true)).await.is_ok());
        assert_eq!(reader.sweep(SweepOptions::new()).await.unwrap_err().kind(), ErrorKind::Forbidden);
    }
}

// K45
#[tokio::test]
async fn dry_sweep_that_receives_dead_letters_is_an_inspection() {
    let (storage, receives) = (Storage::memory(), SweepOptions::new().drained_queues(true).dry_run(true));
    let (reader, refused) = watched(&storage, AccessLevel::ReadOnly);
    assert_eq!(reader.sweep(receives.clone()).await.unwrap_err().kind(), ErrorKind::Forbidden);
    assert_eq!(refused.lock().unwrap()[0].action, Action::Inspect);
    let (inspector, told) = watched(&storage, AccessLevel::only([Action::Inspect]));
    assert_eq!(inspector.sweep(receives).await.unwrap().removed, 0);
    assert_eq!(told.lock().unwrap()[0].action, Action::Inspect);
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
