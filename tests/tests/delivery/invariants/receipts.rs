//! Receipts of one batch and messages that reappear early: I5, F29, F30.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::settings::Metadata;
use jobqueue::sqlite::Options;
use jobqueue::storage::{ExpiredReceipt, GetMessages, MessageRef, PutMessage, UpdateMessage};
use jobqueue::{Event, JobError, JobInfo, QueueName, Storage, Worker, memory};
use jobqueue_tests::jobs::{Task, task};
use jobqueue_tests::running::Running;
use tokio::sync::Notify;

// F29
#[tokio::test]
async fn receipts_swapped_within_a_batch_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = Storage::open(Options::new(folder.path().join("jobs.db"))).await.unwrap();
    let queue: QueueName = "batch".parse().unwrap();
    for storage in [memory::open(), file] {
        let queues = storage.queues();
        queues.create_queue(&queue, &Metadata::new()).await.unwrap();
        let texts = (0..32).map(|n| PutMessage::new(n.to_string())).collect();
        queues.put_all(&queue, texts).await.into_iter().for_each(|put| drop(put.unwrap()));
        let options = GetMessages::new(32, Duration::from_secs(600));
        let got: Vec<_> =
            queues.get(&queue, options).await.unwrap().messages.into_iter().map(|m| m.message).collect();
        assert_eq!(got.len(), 32);
        // Each message with its neighbour's receipt.
        let swapped =
            |n: usize| MessageRef { id: got[n].id.clone(), receipt: got[(n + 1) % 32].receipt.clone() };
        let swapped: Vec<_> = (0..32).map(swapped).collect();
        for answer in queues.delete_all(&queue, swapped.clone(), ExpiredReceipt::Allow).await {
            assert!(answer.unwrap_err().is_lease_lost());
        }
        let change = |text: &str| {
            UpdateMessage::new(Duration::from_secs(600))
                .with_text(Some(text.to_owned()))
                .with_expired(ExpiredReceipt::Allow)
        };
        for message in &swapped {
            assert!(queues.update(&queue, message, change("wrong")).await.unwrap_err().is_lease_lost());
            assert!(queues.delete(&queue, message, ExpiredReceipt::Allow).await.unwrap_err().is_lease_lost());
        }
        // A batch of right and wrong ones does the right ones.
        let mixed = got.iter().zip(&swapped).enumerate();
        let mixed = mixed.map(|(n, (right, wrong))| if n % 2 == 0 { right.clone() } else { wrong.clone() });
        let answers = queues.delete_all(&queue, mixed.collect(), ExpiredReceipt::Refuse).await;
        assert!(answers.iter().enumerate().all(|(n, answer)| answer.is_ok() == (n % 2 == 0)));
        assert_eq!(queues.queue_properties(&queue).await.unwrap().approximate_count, 16);
        for message in got.iter().skip(1).step_by(2) {
            queues.delete(&queue, message, ExpiredReceipt::Refuse).await.unwrap();
        }
    }
}

// As Azure's documentation allows: a message may be visible before its time.
// F30
#[tokio::test(flavor = "multi_thread")]
async fn early_reappearance_is_settled_by_the_second_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let open = || Storage::open(Options::new(&path));
    let (first, second) = (open().await.unwrap(), open().await.unwrap());
    let queue = first.queue::<Task>().await.unwrap();
    let sent = queue.send(&task("a")).await.unwrap();

    let effects: Arc<Mutex<(u32, BTreeSet<String>)>> = Arc::default();
    let release = Arc::new(Notify::new());
    let worker = |storage: &Storage, waits: bool| {
        let (effects, release) = (Arc::clone(&effects), Arc::clone(&release));
        let handler = move |_: Task, info: JobInfo| {
            let (effects, release) = (Arc::clone(&effects), Arc::clone(&release));
            async move {
                if waits {
                    release.notified().await;
                }
                let mut effects = effects.lock().unwrap();
                effects.0 += 1;
                effects.1.insert(info.id.to_string());
                Ok::<(), JobError>(())
            }
        };
        Worker::builder(storage.clone()).concurrency(1).handle(handler)
    };
    let mut slow = Running::start(worker(&first, true)).await;
    slow.until(|event| matches!(event, Event::Started { .. }).then_some(())).await;
    let broken = rusqlite::Connection::open(&path).unwrap();
    assert_eq!(broken.execute("UPDATE jobqueue_lease SET until = 0", []).unwrap(), 1);
    broken.execute("UPDATE jobqueue_queue SET due = 0", []).unwrap();
    let mut quick = Running::start(worker(&second, false)).await;
    assert_eq!(quick.ended().await.name(), "completed");
    release.notify_one();
    assert_eq!(slow.ended().await.name(), "lease_lost");
    let _ = (slow.stop().await, quick.stop().await);
    let effects = effects.lock().unwrap().clone();
    assert_eq!(effects, (2, BTreeSet::from([sent.id().to_owned()])), "two runs under one id");
    assert!(queue.is_empty().await.unwrap());
}
