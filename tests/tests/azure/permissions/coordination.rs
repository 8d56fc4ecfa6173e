//! Batches, recorded effects, durable completions, schedules and leaders.

use std::time::Duration;

use jobqueue::batch::{BatchSweepOptions, sweep_batches};
use jobqueue::leader::Leader;
use jobqueue::schedule::Schedule;
use jobqueue::{Context, JobError};

use super::{End, PRODUCER, Step, WORKER, accept, by_key, by_sas, letters, needs, new_queue, run, shown};
use super::{step, unique, worker};

// F13
#[tokio::test]
async fn batches_need_their_letters() {
    let admin = by_key().await;
    admin.queue::<End>().await.unwrap();
    let send = async |storage: &jobqueue::Storage, name: &str| {
        let mut batch = shown(storage.batch(&unique()).await)?;
        let children = storage.queue_named::<Step>(name).await.unwrap();
        let steps = (0..3).map(|n| step(&n.to_string()));
        shown(batch.send_all(steps).to(&children).await)?;
        shown(batch.then(&End {}).await).map(drop)
    };
    let (name, _) = new_queue(&admin).await;
    // Makes the containers.
    send(&admin, &name).await.unwrap();
    assert_eq!(run(worker(&admin).handle_on(&name, accept)).await, Ok(3));

    let of_child = letters("a child of a batch");
    needs(of_child[0], "rwl", async |letters| {
        let (name, _) = new_queue(&admin).await;
        send(&by_sas(PRODUCER, letters).await, &name).await
    })
    .await;
    needs(of_child[1], "rwl", async |letters| {
        let (name, _) = new_queue(&admin).await;
        send(&admin, &name).await.unwrap();
        let ends = admin.queue::<End>().await.unwrap();
        let before = ends.approximate_len().await.unwrap();
        let done = run(worker(&by_sas(WORKER, letters).await).handle_on(&name, accept)).await?;
        let is_continued = ends.approximate_len().await.unwrap() > before;
        assert!(done == 3 && is_continued, "{done} jobs are done");
        Ok(())
    })
    .await;
    needs(letters("[`sweep_batches`]")[0], "l", async |letters| {
        shown(sweep_batches(&by_sas("r", letters).await, BatchSweepOptions::new()).await).map(drop)
    })
    .await;
}

// F13
#[tokio::test]
async fn recorded_effects_need_their_letters() {
    let admin = by_key().await;
    let effect = |_: Step, ctx: Context| async move {
        ctx.once("effect", || async { Ok::<_, JobError>(1) }).await.map(drop)
    };
    let (name, queue) = new_queue(&admin).await;
    // Makes the container.
    queue.send(&step("a")).await.unwrap();
    assert_eq!(run(worker(&admin).handle_on(&name, effect)).await, Ok(1));
    needs(letters("[`Context::once`]")[0], "rw", async |letters| {
        let (name, queue) = new_queue(&admin).await;
        queue.send(&step("a")).await.unwrap();
        // A record is tried again until the lease ends.
        let worker = worker(&by_sas(WORKER, letters).await).handle_on(&name, effect);
        run(worker).await.map(drop)
    })
    .await;
}

/// A worker that may not record a completion logs that, and goes on.
// F13
#[tokio::test]
async fn durable_completions_work_with_their_letters() {
    let admin = by_key().await;
    for storage in [admin.clone(), by_sas(WORKER, letters("[`durable_completions`]")[0]).await] {
        let (name, queue) = new_queue(&admin).await;
        queue.send(&step("a")).await.unwrap();
        let builder = worker(&storage).durable_completions(true).handle_on(&name, accept);
        assert_eq!(run(builder).await, Ok(1));
    }
}

// F13
#[tokio::test]
async fn schedules_and_leaders_need_their_letters() {
    let admin = by_key().await;
    let ends = admin.queue::<End>().await.unwrap();
    // Makes the container.
    assert!(Leader::new(&admin, unique()).unwrap().try_lead().await.unwrap().is_some());
    needs(letters("a leadership")[0], "rw", async |letters| {
        let leader = Leader::new(&by_sas(WORKER, letters).await, unique()).unwrap();
        assert!(shown(leader.try_lead().await)?.is_some());
        Ok(())
    })
    .await;

    let every = |name: &str| Schedule::every(Duration::from_secs(1)).name(name);
    for storage in [admin.clone(), by_sas(WORKER, letters("a schedule")[0]).await] {
        let before = ends.approximate_len().await.unwrap();
        let builder = worker(&storage).presence(None).schedule_by(every(&unique()), || End {});
        let sent = async {
            while ends.approximate_len().await.unwrap() == before {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let running = builder.build().unwrap().run_until(sent);
        let _ = tokio::time::timeout(Duration::from_secs(30), running).await.unwrap().unwrap();
    }
}
