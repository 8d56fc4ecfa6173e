//! Two workers on Azurite, and cancelled messages there and on a SQLite file.

use std::time::Duration;

use jobqueue::{SendOptions, Storage, Worker};
use jobqueue_tests::azurite::Azurite;

use crate::order::{Step, Watch, handle, send, step};

#[tokio::test(flavor = "multi_thread")]
async fn order_over_azurite() {
    let azurite = Azurite::shared();
    let storage = Storage::connect(&azurite.connection_string()).await.unwrap();
    let queue = storage.queue::<Step>().await.unwrap();
    for number in 0..4 {
        for key in 0..2 {
            let fails = u32::from(number == 1);
            send(&queue, &Step { fails, ..step(key.to_string(), number) }).await;
        }
    }
    let watch = Watch::default();
    let workers = (0..2).map(|_| {
        let seen = watch.clone();
        let worker = Worker::builder(storage.clone()).state(watch.clone()).handle(handle).build().unwrap();
        worker.run_until(async move {
            seen.ends(8).await;
            seen.end.notify_one();
        })
    });
    for report in futures_util::future::join_all(workers).await {
        let _ = report.unwrap();
    }
    watch.assert_in_order(2, 4);
    // No other test may use the queue meanwhile.
    // The log remembers the cancellation.
    cancelled_job_gives_up_its_place(&storage, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_message_gives_up_its_position_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", folder.path().join("jobs.db").display());
    cancelled_job_gives_up_its_place(&Storage::connect(&file).await.unwrap(), false).await;
}

/// `again`: what a second cancellation of the same job returns.
async fn cancelled_job_gives_up_its_place(storage: &Storage, again: bool) {
    let queue = storage.queue::<Step>().await.unwrap();
    let later = SendOptions::new().in_order().delay(Duration::from_secs(3600));
    let first = queue.send(&step("a", 0)).with(later.clone()).await.unwrap();
    let unique = queue.send(&step("a", 1)).unique_for(Duration::from_secs(60)).with(later).await.unwrap();
    assert!(unique.is_sent());
    send(&queue, &step("a", 2)).await;
    assert!(queue.cancel(&first).await.unwrap());
    assert_eq!(queue.cancel(&first).await.unwrap(), again);
    assert!(queue.cancel_unique("a").await.unwrap());
    let watch = Watch::default();
    let worker = Worker::builder(storage.clone()).state(watch.clone()).handle(handle).build().unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(120), worker.run_until(watch.ends(1))).await;
    let _ = ended.expect("nothing is waited for").unwrap();
    assert_eq!(watch.begun("a"), [2]);
}
