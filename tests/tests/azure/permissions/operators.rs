//! Records of workers, the journal, and the operations of viewers and operators.

use std::time::Duration;

use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::{JobError, Storage};
use jobqueue_admin::{AccessLevel, Admin, DeadLetterFilter, HistoryFilter, JobReference, ListeningQueue};

use super::worker;
use super::{
    HOUR, Step, WORKER, accept, by_key, by_sas, by_sas_for, letters, needs, new_queue, run, shown, step,
};

fn operator(storage: &Storage) -> Admin {
    Admin::builder(storage.clone()).access(AccessLevel::Operate).build()
}

/// Runs a worker with a record and a journal until an operator has cancelled a job.
async fn run_recorded(admin: &Storage, storage: &Storage) {
    let (name, queue) = new_queue(admin).await;
    queue.send(&step("a")).await.unwrap();
    let delayed = queue.send(&step("b")).delay(HOUR).await.unwrap();
    let builder = worker(storage).presence(Duration::from_millis(100)).history(HOUR).handle_on(&name, accept);
    let (operator, name, id) = (&operator(storage), &name, delayed.id());
    let listens = |queues: &[ListeningQueue]| queues.iter().any(|queue| queue.name == *name);
    let seen = async move {
        while !operator.workers().await.unwrap().iter().any(|one| listens(&one.record.queues)) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        operator.cancel(&JobReference::new(name, id)).await.unwrap();
    };
    let running = builder.build().unwrap().run_until(seen);
    let _ = tokio::time::timeout(Duration::from_secs(30), running).await.unwrap().unwrap();
}

// F13
#[tokio::test]
async fn records_journal_and_cancellation_need_their_letters() {
    let admin = by_key().await;
    let (of_record, of_history) = (letters("[the record of a worker]")[0], letters("[`history`]"));
    assert_eq!(
        (of_history[0], letters("cancelling by id")[0]),
        (of_record, of_record),
        "one worker needs them all"
    );
    for storage in [&admin, &by_sas(WORKER, of_record).await] {
        run_recorded(&admin, storage).await;
    }
    needs(of_history[1], "rl", async |letters| {
        let found = shown(Admin::new(by_sas("r", letters).await).history(&HistoryFilter::new()).await)?;
        assert!(!found.jobs.is_empty());
        Ok(())
    })
    .await;
    needs(of_record, "wl", async |letters| {
        let (name, queue) = new_queue(&admin).await;
        let sent = queue.send(&step("a")).await.unwrap();
        let operator = operator(&by_sas(WORKER, letters).await);
        shown(operator.cancel(&JobReference::new(&name, sent.id())).await).map(drop)
    })
    .await;
}

// F13
#[tokio::test]
async fn sweeps_need_their_letters() {
    run_recorded(&by_key().await, &by_key().await).await;
    needs(letters("a [sweep]")[0], "l", async |letters| {
        shown(sweep(&by_sas("r", letters).await, SweepOptions::new()).await).map(drop)
    })
    .await;
}

// F13
#[tokio::test]
async fn pauses_need_their_letters() {
    let admin = by_key().await;
    needs(letters("pausing a queue")[0], "rw", async |letters| {
        let (name, _) = new_queue(&admin).await;
        shown(operator(&by_sas(letters, "l").await).pause(&name).await).map(drop)
    })
    .await;
}

// F13
#[tokio::test]
async fn redrives_need_their_letters() {
    let admin = by_key().await;
    let [blobs, .., queues] = letters("a redrive, a purge")[..] else { panic!() };
    needs(queues, "rap", async |letters| {
        let (name, queue) = new_queue(&admin).await;
        queue.send(&step("a")).await.unwrap();
        let handle = |_: Step| async { Err::<(), _>(JobError::dead_letter("no")) };
        let dead = run(worker(&admin).handle_on(&name, handle)).await;
        assert_eq!(dead, Err("no\n".to_owned()));
        let operator = operator(&by_sas(letters, blobs).await);
        let report = shown(operator.redrive(&name).filter(DeadLetterFilter::all()).run().await)?;
        if report.count == 1 { Ok(()) } else { Err(format!("{report:?}")) }
    })
    .await;
}

// F13
#[tokio::test]
async fn viewers_need_their_letters() {
    let admin = by_key().await;
    run_recorded(&admin, &admin).await;
    let [blobs, queues] = letters("the dashboard")[..] else { panic!() };
    let look = async |queues: &str, blobs: &str| {
        let viewer = Admin::new(by_sas_for("sco", queues, blobs).await);
        let found = shown(viewer.queues().await)?;
        // Other tests delete their queues meanwhile, which Azurite answers with 500.
        let missing = |error: &String| error.contains("missing: ");
        if let Some(error) = found.iter().filter_map(|queue| queue.error.clone()).find(missing) {
            return Err(error);
        }
        shown(viewer.workers().await)?;
        shown(viewer.batches().await)?;
        shown(viewer.leaders().await)?;
        shown(viewer.history(&HistoryFilter::new()).await).map(drop)
    };
    needs(blobs, "rl", async |letters| look(queues, letters).await).await;
    needs(queues, "rl", async |letters| look(letters, blobs).await).await;
}
