//! The features of single jobs.

use std::time::Duration;

use jobqueue::sharded::Sharded;
use jobqueue::{Context, JobError, Storage};

use super::{HOUR, PRODUCER, Step, WORKER, accept, by_key, by_sas, letters, needs, new_queue, run, shown};
use super::{step, worker};

// F13
#[tokio::test]
async fn queues_need_their_letters() {
    let admin = by_key().await;
    needs(PRODUCER, "ra", async |letters| {
        let (name, _) = new_queue(&admin).await;
        let queue = shown(by_sas(letters, "l").await.queue_named::<Step>(&name).await)?;
        shown(queue.send(&step("a")).await).map(drop)
    })
    .await;
}

// F13
#[tokio::test]
async fn large_payloads_and_checkpoints_need_their_letters() {
    let admin = by_key().await;
    let (_, queue) = new_queue(&admin).await;
    let large = step(&"large".repeat(20_000));
    // Makes the container.
    queue.send(&large).key("k").await.unwrap();

    let of_payload = letters("a payload over 64 KiB");
    needs(of_payload[0], "w", async |letters| {
        let (name, _) = new_queue(&admin).await;
        let queue = by_sas(PRODUCER, letters).await.queue_named::<Step>(&name).await.unwrap();
        shown(queue.send(&large).key("k").await).map(drop)
    })
    .await;
    // Without `d` the blob is left for a sweep.
    needs(of_payload[1], "r", async |letters| {
        let (name, queue) = new_queue(&admin).await;
        queue.send(&large).key("k").await.unwrap();
        run(worker(&by_sas(WORKER, letters).await).handle_on(&name, accept)).await.map(drop)
    })
    .await;
    needs(letters("a checkpoint or step")[0], "rw", async |letters| {
        let (name, queue) = new_queue(&admin).await;
        queue.send(&step("a")).await.unwrap();
        let handle = |_: Step, ctx: Context| async move {
            let Some(saved) = ctx.resume::<String>().await? else {
                ctx.checkpoint(&"c".repeat(40_000)).await?;
                return Err(JobError::snooze(Duration::ZERO));
            };
            assert_eq!(saved.len(), 40_000);
            Ok(())
        };
        let done = run(worker(&by_sas(WORKER, letters).await).handle_on(&name, handle)).await?;
        (done == 1).then_some(()).ok_or_else(|| "the job was not completed".to_owned())
    })
    .await;
}

// F13
#[tokio::test]
async fn job_with_a_payload_in_a_blob_stays_in_its_queue_without_letters() {
    let admin = by_key().await;
    let large = step(&"large".repeat(20_000));
    let letters = letters("a dead letter")[0];
    for (letters, dead_lettered) in [(letters, 1), (&*letters.replace('w', ""), 0)] {
        let (name, queue) = new_queue(&admin).await;
        queue.send(&large).key("k").await.unwrap();
        let handle = |_: Step| async { Err::<(), _>(JobError::dead_letter("no")) };
        let worker = worker(&by_sas(WORKER, letters).await).presence(None).handle_on(&name, handle);
        let report = worker.build().unwrap().run_until_idle().await.unwrap();
        assert_eq!(report.dead_lettered, dead_lettered, "{letters}");
        assert_eq!(queue.approximate_len().await.unwrap(), 1 - dead_lettered);
    }
}

// F13
#[tokio::test]
async fn unique_work_needs_its_letters() {
    let admin = by_key().await;
    let (_, queue) = new_queue(&admin).await;
    // Makes the container.
    queue.send(&step("a")).unique_for(HOUR).await.unwrap();
    needs(letters("[`unique_for`]")[0], "rw", async |letters| {
        let (name, _) = new_queue(&admin).await;
        let queue = by_sas(PRODUCER, letters).await.queue_named::<Step>(&name).await.unwrap();
        for is_sent in [true, false] {
            assert_eq!(shown(queue.send(&step("a")).unique_for(HOUR).await)?.is_sent(), is_sent);
        }
        Ok(())
    })
    .await;
    let cancelling = letters("cancelling by key");
    let cancel = async |queues: &str, blobs: &str| {
        let (name, queue) = new_queue(&admin).await;
        queue.send(&step("a")).unique_for(HOUR).await.unwrap();
        let queue = by_sas(queues, blobs).await.queue_named::<Step>(&name).await.unwrap();
        assert!(shown(queue.cancel_unique("a").await)?);
        Ok(())
    };
    let queues = format!("{PRODUCER}{}", cancelling[1]);
    needs(cancelling[0], "rw", async |letters| cancel(&queues, letters).await).await;
    needs(&queues, "p", async |letters| cancel(letters, cancelling[0]).await).await;
}

// F13
#[tokio::test]
async fn order_needs_its_letters() {
    let admin = by_key().await;
    let (_, queue) = new_queue(&admin).await;
    // Makes the container.
    queue.send(&step("a")).in_order().await.unwrap();
    let of_order = letters("[`in_order`]");
    needs(of_order[0], "rw", async |letters| {
        let (name, _) = new_queue(&admin).await;
        let queue = by_sas(PRODUCER, letters).await.queue_named::<Step>(&name).await.unwrap();
        shown(queue.send(&step("b")).in_order().await)?;
        shown(queue.send(&step("b")).in_order().await).map(drop)
    })
    .await;
    needs(of_order[1], "rw", async |letters| {
        let (name, queue) = new_queue(&admin).await;
        queue.send(&step("b")).in_order().await.unwrap();
        queue.send(&step("b")).in_order().await.unwrap();
        run(worker(&by_sas(WORKER, letters).await).handle_on(&name, accept)).await.map(drop)
    })
    .await;
}

// F13
#[tokio::test]
async fn shards_need_their_letters() {
    let admin = by_key().await;
    let two_shards = |storage: &Storage| {
        let sharded = Sharded::builder().account("a", storage.clone()).default_shards(2).build().unwrap();
        Storage::from(sharded.stores())
    };
    needs(letters("a [sharded]")[0], "r", async |letters| {
        let (name, _) = new_queue(&two_shards(&admin)).await;
        let storage = two_shards(&by_sas(WORKER, letters).await);
        let queue = shown(storage.queue_named::<Step>(&name).await)?;
        shown(queue.send(&step("a")).await)?;
        run(worker(&storage).handle_on(&name, accept)).await.map(drop)
    })
    .await;
}
