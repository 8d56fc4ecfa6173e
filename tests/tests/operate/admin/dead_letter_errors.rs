//! Counts of dead letters: by their errors, and on a storage that counts none.

use std::time::Duration;

use jobqueue::settings::Metadata;
use jobqueue::storage::{GetMessages, Operation, PutMessage, StoreErrorKind};
use jobqueue::{JobError, JobInfo, QueueName, Storage, Worker};
use jobqueue_admin::{DeadLetterFilter, JobPlace};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::Task;
use serde_json::json;

use crate::admin::support::{operator, send, storages};

const QUEUE: &str = "tasks";

#[tokio::test]
async fn dead_letters_are_counted_by_their_errors() {
    for (storage, _folder) in storages().await {
        let admin = operator(&storage);
        send(&admin, QUEUE, (0..9).map(|n| n.to_string())).await;
        let handler = async |_: Task, info: JobInfo| {
            let text = match info.id.parse::<u64>() {
                Ok(number) if number % 3 == 0 => format!("row {} is locked by \"w{number}\"", number + 417),
                Ok(_) => "HTTP 503".to_owned(),
                Err(error) => error.to_string(),
            };
            Err::<(), _>(JobError::dead_letter(text))
        };
        let worker = Worker::builder(storage.clone()).handle_on(QUEUE, handler).build().unwrap();
        assert_eq!(worker.run_until_idle().await.unwrap().dead_lettered, 9);
        let page = admin.search_dead_letters(QUEUE, &DeadLetterFilter::new(), 0).await.unwrap();
        let shown = admin.dead_letters(QUEUE, &DeadLetterFilter::new()).await.unwrap();
        let preview = admin.redrive(QUEUE).filter(DeadLetterFilter::all()).dry_run(true).run().await.unwrap();
        assert!(page.errors == shown.errors && page.errors == preview.errors, "{page:?} {shown:?}");
        let found: Vec<_> = page.errors.iter().map(|group| (group.count, group.error.as_str())).collect();
        assert_eq!(found, [(6, "HTTP 503"), (3, "row # is locked by \"…\"")]);
        let locked = &page.errors[1];
        assert_eq!((locked.kind.as_str(), locked.reason.as_str()), ("task", "rejected"));
        assert!(locked.first.is_some() && locked.first <= locked.last);
        assert!(["0", "3", "6"].contains(&locked.sample.id.as_str()), "{locked:?}");
        assert!(locked.sample_error.as_deref().is_some_and(|error| error.starts_with("row 4")));
        let of_group = DeadLetterFilter::new().fingerprint(&locked.fingerprint);
        let redriven = admin.redrive(QUEUE).filter(of_group).run().await.unwrap();
        let queue = admin.queue(QUEUE).await.unwrap();
        assert_eq!((redriven.count, queue.length, queue.dead_letters), (3, Some(3), Some(6)));
    }
}

// round 31, ops C5
#[tokio::test]
async fn group_of_errors_names_a_bounded_number_of_versions() {
    let storage = Storage::memory();
    let admin = operator(&storage);
    admin.create_queue(QUEUE).await.unwrap();
    let poison = "tasks-poison".parse().unwrap();
    storage.queues().create_queue(&poison, &Metadata::new()).await.unwrap();
    for version in 1..=25 {
        let letter = format!(
            r#"{{"specversion":"1.0","id":"{version}","source":"/s","type":"task","schemaversion":{version}}}"#
        );
        let _ = storage.queues().put(&poison, PutMessage::new(letter)).await.unwrap();
    }
    let page = admin.dead_letters(QUEUE, &DeadLetterFilter::new()).await.unwrap();
    assert_eq!(page.errors[0].count, 25);
    assert!(page.errors[0].versions.iter().copied().eq(6..=25), "{:?}", page.errors[0].versions);
}

// As on a partitioned queue of Service Bus without the claim Manage.
#[tokio::test]
async fn dead_letters_that_cannot_be_counted_can_be_listed_and_put_back() {
    let inner = Storage::memory();
    let admin = operator(&inner);
    send(&admin, QUEUE, (0..3).map(|n| n.to_string())).await;
    let handler = async |_: Task| Err::<(), _>(JobError::dead_letter("refused"));
    let worker = Worker::builder(inner.clone()).handle_on(QUEUE, handler).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().dead_lettered, 3);
    let faulty = Faulty::new(&inner);
    let unsupported = Fault::Refuse(StoreErrorKind::Unsupported);
    faulty.on(Operation::QueueProperties, move |call| (call.subject != QUEUE).then_some(unsupported));
    let admin = operator(&faulty.storage());
    let page = admin.dead_letters(QUEUE, &DeadLetterFilter::new()).await.unwrap();
    assert_eq!((page.letters.len(), page.complete), (3, false));
    let first = admin.explain(&page.letters[0].reference()).await.unwrap();
    assert_eq!(first.place, JobPlace::Dead, "{}", first.summary);
    let all = DeadLetterFilter::all();
    let mut totals = Vec::new();
    let preview = admin.redrive(QUEUE).filter(all.clone()).dry_run(true);
    let preview = preview.on_progress(|progress| totals.push(progress.total)).run().await.unwrap();
    assert_eq!((preview.count, preview.unseen, preview.complete), (3, None, false));
    assert_eq!(totals, [None; 3]);
    let first = admin.redrive(QUEUE).plan(preview.plan()).limit(1).run().await.unwrap();
    assert_eq!((first.count, first.complete), (1, true), "it met as many as its limit");
    let outcome = admin.outcome(&first.plan()).await.unwrap();
    assert_eq!((outcome.open, outcome.unknown), (1, 0), "{outcome:?}");
    let rest = admin.purge(QUEUE).plan(preview.plan()).run().await.unwrap();
    assert_eq!((rest.count, rest.missing), (2, Some(1)));
}

// round 34, A10: a letter that stays took a place of the limit, and hid that others hold some.
#[tokio::test]
async fn letters_that_stay_do_not_fill_the_limit() {
    let storage = Storage::memory();
    let admin = operator(&storage);
    admin.create_queue(QUEUE).await.unwrap();
    let dead = QueueName::new(QUEUE).unwrap().dead_letter().unwrap();
    let queues = storage.queues();
    queues.create_queue(&dead, &Metadata::new()).await.unwrap();
    // The first is held by another reader, and the second cannot be put back.
    for (id, home) in [("1", QUEUE), ("2", "another"), ("3", QUEUE)] {
        let letter = json!({
            "specversion": "1.0", "id": id, "source": "/shop", "type": "task", "data": { "name": id },
            "deadletterreason": "rejected", "deadletterqueue": home, "deadlettermessage": format!("m-{id}"),
            "deadlettertime": "2026-01-02T03:04:05Z", "deadletterdeliveries": 1,
        });
        let _ = queues.put(&dead, PutMessage::new(letter.to_string())).await.unwrap();
        if id == "1" {
            let held = queues.get(&dead, GetMessages::new(1, Duration::from_secs(600))).await.unwrap();
            assert_eq!(held.messages.len(), 1);
        }
    }
    let report = admin.redrive(QUEUE).filter(DeadLetterFilter::all()).limit(2).run().await.unwrap();
    assert_eq!((report.count, report.skipped.len(), report.unseen), (1, 1, Some(1)), "{report:?}");
    assert!(!report.complete);
}
