//! The jobs that belong to a batch: not those with its headers, and also one whose records are damaged.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::batch::OnDeadLetters;
use jobqueue::storage::{Blob, BlobName, ContainerName, Operation, PutBlob, PutMessage, StoreErrorKind};
use jobqueue::{Context, Error, ErrorKind, JobError, JobInfo, QueueMessage, SendOptions, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{after, in_memory, worker};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::{Join, Log, Page, PageJoin, Slice, builder, fan_out, slice};

const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "notes", kind = "note")]
struct Note {}

/// Puts a note with all headers of the job that sends it.
async fn put_note(storage: &Storage, ctx: &Context) -> Result<(), JobError> {
    let JobInfo { id, headers, .. } = ctx.info();
    let mut event = serde_json::json!({
        "specversion": "1.0", "id": id.as_ref(), "source": "/other", "type": "note", "data": {},
    });
    for (name, value) in headers {
        event[name.as_str()] = value.as_str().into();
    }
    let queue = storage.queue::<Note>().await?;
    storage.queues().put(queue.name(), PutMessage::new(event.to_string())).await.map_err(Error::from)?;
    Ok(())
}

/// A program in another language that passes on headers, such as those of a tenant, passes on all of them.
#[tokio::test(start_paused = true)]
async fn job_with_the_headers_of_a_child_or_continuation_is_an_ordinary_one() {
    for policy in [OnDeadLetters::Wait, OnDeadLetters::Continue] {
        let (storage, notes) = (in_memory(), Arc::new(Mutex::new(0)));
        fan_out(&storage, 1, policy).await;
        let (of_slice, of_join) = (storage.clone(), storage.clone());
        let slice = move |_: Slice, ctx: Context| {
            let storage = of_slice.clone();
            async move { put_note(&storage, &ctx).await }
        };
        let join = move |_: Join, ctx: Context| {
            let storage = of_join.clone();
            async move { put_note(&storage, &ctx).await }
        };
        let ran = Arc::clone(&notes);
        let note = move |_: Note| {
            *ran.lock().unwrap() += 1;
            async { Ok::<_, JobError>(()) }
        };
        let worker = worker(&storage).handle(slice).handle(join).handle(note).build().unwrap();
        let report = worker.run_until(after(600)).await.unwrap();
        assert_eq!(*notes.lock().unwrap(), 2, "{policy:?}: {report:?}");
        assert_eq!((report.completed, report.duplicates), (4, 0), "{policy:?}: {report:?}");
    }
}

/// Those of a message that is in order, and of a child or continuation of a batch.
#[tokio::test(start_paused = true)]
async fn headers_of_one_message_are_not_passed_on() {
    let storage = in_memory();
    let names = "inorder fifocopy fifopage batchid batchindex batchtoken batchondead batchcopy batchof batchoftoken tenant";
    let names: Vec<_> = names.split(' ').collect();
    let options = names.iter().fold(SendOptions::new(), |options, name| options.header(*name, "true"));
    let _ = storage.queue::<Slice>().await.unwrap().send(&Slice { n: 0 }).with(options).await.unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let slice = move |_: Slice, info: JobInfo| {
        log.lock().unwrap().extend(info.headers.keys().map(ToString::to_string));
        async { Ok::<_, JobError>(()) }
    };
    let _ = worker(&storage).handle(slice).build().unwrap().run_until(after(10)).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), ["tenant"]);
}

/// Sends a child in order, and damages the log that keeps its order. Returns the log's former text.
async fn damage_order(storage: &Storage) -> Vec<(BlobName, Blob)> {
    let mut batch = storage.batch("b").await.unwrap();
    batch.on_dead_letters(OnDeadLetters::Continue);
    batch.send_all([Slice { n: 0 }]).in_order().await.unwrap();
    batch.then(&Join {}).await.unwrap();
    let (container, mut former) = (ContainerName::new("jobqueue-fifo").unwrap(), Vec::new());
    for (name, _) in storage.blobs().list_blobs(&container, "", None).await.unwrap().blobs {
        let name = BlobName::new(container.clone(), name).unwrap();
        former.push((name.clone(), storage.blobs().get_blob(&name, 1_000_000).await.unwrap()));
        storage.blobs().put_blob(&name, "x".into(), PutBlob::new()).await.unwrap();
    }
    former
}

/// The job is given up after an hour.
#[tokio::test(start_paused = true)]
async fn child_whose_order_is_damaged_counts_as_ended() {
    let (storage, log) = (Faulty::new(&in_memory()).storage(), Log::default());
    let _ = damage_order(&storage).await;
    let report =
        builder(&storage, &log).handle(slice).build().unwrap().run_until(after(9_000)).await.unwrap();
    assert_eq!(report.dead_lettered, 1, "{report:?}");
    assert_eq!(storage.batch_progress("b").await.unwrap().unwrap().failed, 1);
    assert_eq!(log.joins.lock().unwrap().len(), 1, "the batch goes on");
}

/// The request that records the end is lost, and then the log is repaired.
#[tokio::test(start_paused = true)]
async fn child_that_is_given_up_ends_only_when_that_is_recorded() {
    let (faulty, log, lost) = (Faulty::new(&in_memory()), Log::default(), Arc::new(Notify::new()));
    let storage = faulty.storage();
    let former = damage_order(&storage).await;
    let (begin, loses) = (Instant::now(), Arc::clone(&lost));
    faulty.on(Operation::Update, move |_| {
        (HOUR..HOUR + HOUR / 6).contains(&begin.elapsed()).then(|| {
            loses.notify_one();
            Fault::LoseRequest(StoreErrorKind::Timeout)
        })
    });
    let worker = builder(&storage, &log).handle(slice).build().unwrap();
    let running = tokio::spawn(worker.run_until(after(9_000)));
    lost.notified().await;
    for (name, blob) in former {
        storage.blobs().put_blob(&name, blob.data, PutBlob::new()).await.unwrap();
    }
    sleep(Duration::from_secs(60)).await;
    assert_eq!(storage.batch_progress("b").await.unwrap().unwrap().failed, 0, "the child may still run");
    let report = running.await.unwrap().unwrap();
    assert_eq!((report.completed, report.dead_lettered), (2, 0), "{report:?}");
    assert_eq!(*log.joins.lock().unwrap(), [[Ok(Some(0))]]);
}

// R17-3: the next attempt needs no batch.
#[tokio::test(start_paused = true)]
async fn child_ends_itself_if_its_inner_batch_was_never_sealed() {
    let (faulty, log) = (Faulty::new(&in_memory()), Log::default());
    let storage = faulty.storage();
    let mut outer = storage.batch("book").await.unwrap();
    outer.send_all([Page { n: 1, waits: false }]).await.unwrap();
    outer.then(&Join {}).await.unwrap();
    let page = move |_: Page, ctx: Context| {
        let faulty = faulty.clone();
        async move {
            if ctx.info().attempt > 1 {
                return Ok(());
            }
            let mut inner = ctx.batch("inner").await?;
            inner.send_all([Slice { n: 1 }]).await?;
            faulty.on(Operation::PutBlob, |call| {
                call.subject.ends_with("inner/plan").then_some(Fault::Refuse(StoreErrorKind::Unauthorized))
            });
            let failed = inner.then(&PageJoin {}).await.unwrap_err();
            Err(JobError::retry(failed.to_string()))
        }
    };
    let report = builder(&storage, &log).handle(page).build().unwrap().run_until(after(600)).await.unwrap();
    assert_eq!(report.retried, 1, "{report:?}");
    assert_eq!(*log.joins.lock().unwrap(), [[Ok(None)]]);
}

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "lastjoins", kind = "last.join")]
struct LastJoin {}

/// Returns a function that notes how often the outer batch has gone on, and what it has noted.
fn joins_noted(log: &Log) -> (impl Fn() + Clone + use<>, Arc<Mutex<Vec<usize>>>) {
    let (before, joins) = (Arc::<Mutex<Vec<usize>>>::default(), Arc::clone(&log.joins));
    let noted = Arc::clone(&before);
    (move || noted.lock().unwrap().push(joins.lock().unwrap().len()), before)
}

/// The continuation of the child's first batch has recorded a second one, and not sealed it yet, when the
/// child's second attempt returns.
#[tokio::test(start_paused = true)]
async fn child_does_not_leave_out_a_batch_that_another_job_is_about_to_seal() {
    let (faulty, log) = (Faulty::new(&in_memory()), Log::default());
    let storage = faulty.storage();
    let mut outer = storage.batch("book").await.unwrap();
    outer.send_all([Page { n: 1, waits: false }]).await.unwrap();
    outer.then(&Join {}).await.unwrap();
    let (begun, recorded) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let sealing = Arc::clone(&recorded);
    faulty.on(Operation::PutBlob, move |call| {
        let seals = call.subject.ends_with("next/plan");
        seals.then(|| sealing.notify_one()).map(|()| Fault::DelayBefore(Duration::from_secs(10)))
    });
    let until_begun = Arc::clone(&begun);
    let page = move |_: Page, ctx: Context| {
        let (begun, recorded) = (Arc::clone(&begun), Arc::clone(&recorded));
        async move {
            if ctx.info().attempt > 1 {
                begun.notify_one();
                recorded.notified().await;
                return Ok(());
            }
            let mut inner = ctx.batch("inner").await?;
            inner.send_all([Slice { n: 1 }]).await?;
            inner.then(&PageJoin {}).await?;
            Err(JobError::retry("planted"))
        }
    };
    let (note, before) = joins_noted(&log);
    let note_last = note.clone();
    let page_join = move |_: PageJoin, ctx: Context| {
        let (begun, note) = (Arc::clone(&until_begun), note.clone());
        async move {
            let mut next = ctx.batch("next").await?;
            next.send_all([Slice { n: 2 }]).await?;
            begun.notified().await;
            next.then(&LastJoin {}).await?;
            // The last job ends meanwhile.
            sleep(Duration::from_secs(60)).await;
            note();
            Ok::<_, JobError>(())
        }
    };
    let last_join = move |_: LastJoin| {
        note_last();
        async { Ok::<_, JobError>(()) }
    };
    let worker = builder(&storage, &log).handle(slice).handle(page).handle(page_join).handle(last_join);
    let report = worker.build().unwrap().run_until(after(600)).await.unwrap();
    assert_eq!(report.retried, 1, "{report:?}");
    assert_eq!(*before.lock().unwrap(), [0, 0], "the outer batch goes on after all work of its child");
    assert_eq!(log.joins.lock().unwrap().len(), 1);
}

// No worker of the other storage finds the batch, which waited for ever.
// round 31, coordination 5: nor does it reach the queue of the continuation, if it has only the blobs.
#[tokio::test]
async fn batch_refuses_children_for_a_queue_of_another_storage() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    let storage = Storage::connect(&path("jobs.db")).await.unwrap();
    let mut batch = storage.batch("far").await.unwrap();
    let memory = Storage::memory();
    let (queues, blobs) = (Arc::clone(memory.queues().store()), Arc::clone(storage.blobs()));
    let borrowed = Storage::new(queues, blobs, "memory with the blobs of jobs.db");
    for far in [Storage::connect(&path("far.db")).await.unwrap(), memory, borrowed] {
        let notes = far.queue::<Note>().await.unwrap();
        let error = batch.send_all([Note {}]).to(&notes).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(notes.approximate_len().await.unwrap(), 0);
    }
    let same = Storage::connect(&path("jobs.db")).await.unwrap().queue::<Note>().await.unwrap();
    batch.send_all([Note {}]).to(&same).await.unwrap();
    batch.then(&Note {}).await.unwrap();
}
