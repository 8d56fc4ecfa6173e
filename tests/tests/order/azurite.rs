//! Two workers on Azurite.

use jobqueue::{Storage, Worker};
use jobqueue_tests::azurite::Azurite;

use crate::{Step, Watch, handle, send, step};

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
}
