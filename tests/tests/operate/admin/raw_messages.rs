//! Messages of other programs that are no events: they have one name in all looks.

use std::time::Duration;

use jobqueue::settings::Metadata;
use jobqueue::storage::PutMessage;
use jobqueue::{JobError, JobInfo};
use jobqueue_admin::{DeadLetterFilter, JobFilter, JobPlace, JobReference, JobState};
use jobqueue_tests::jobs::{Task, after, in_memory, worker};

use crate::admin::support::operator;

// audit 25, operator B2
#[tokio::test(start_paused = true)]
async fn raw_message_is_found_under_the_sender_that_its_worker_names() {
    let storage = in_memory();
    storage.queue::<Task>().await.unwrap();
    let tasks = "tasks".parse().unwrap();
    let _ = storage.queues().put(&tasks, PutMessage::new(r#"{"name":"a"}"#)).await.unwrap();
    let admin = operator(&storage);
    let waiting = admin.peek("tasks").await.unwrap().remove(0);
    let handler = async |_: Task, info: JobInfo| {
        let text = format!("run as {} of {}", info.id, info.source);
        Err::<(), _>(JobError::retry_after(Duration::from_secs(3_600), text))
    };
    let _ = worker(&storage).handle(handler).build().unwrap().run_until(after(1)).await.unwrap();
    let page = admin.jobs("tasks", JobState::BackingOff, &JobFilter::new()).await.unwrap();
    let error = page.jobs[0].last_error.clone().unwrap();
    let (id, source) = error.split_once("run as ").unwrap().1.split_once(" of ").unwrap();
    assert_eq!((waiting.id.as_str(), waiting.source.as_str()), (id, source));

    let _ = storage.queues().put(&tasks, PutMessage::new(r#"{"name":"b"}"#)).await.unwrap();
    let other = admin.peek("tasks").await.unwrap().remove(0);
    let found = admin.explain(&JobReference::new("tasks", &other.id).with_source(source)).await.unwrap();
    assert_eq!((found.place, found.has_ended), (JobPlace::Waiting, false), "{}", found.summary);
}

#[tokio::test(start_paused = true)]
async fn dead_letter_that_is_no_event_is_found_as_plans_and_lists_name_it() {
    let storage = in_memory();
    storage.queue::<Task>().await.unwrap();
    let poison = "tasks-poison".parse().unwrap();
    storage.queues().create_queue(&poison, &Metadata::new()).await.unwrap();
    let _ = storage.queues().put(&poison, PutMessage::new("text of a WebJobs host")).await.unwrap();
    let admin = operator(&storage);
    let all = DeadLetterFilter::all();
    let preview = admin.redrive("tasks").filter(all.clone()).dry_run(true).run().await.unwrap();
    let listed = admin.dead_letters("tasks", &all).await.unwrap();
    assert_eq!(listed.letters[0].reference(), preview.jobs[0]);
    assert_eq!(listed.errors[0].sample, preview.jobs[0]);
    assert_eq!(admin.explain(&preview.jobs[0]).await.unwrap().place, JobPlace::Dead);
    let of_sender = DeadLetterFilter::new().source(&listed.letters[0].source);
    assert_eq!(admin.redrive("tasks").filter(of_sender).run().await.unwrap().count, 1);
}

// review 33 c, B2: all of them were kept, 700 MB for 10,000.
#[tokio::test(start_paused = true)]
async fn dead_letters_of_a_filter_are_counted_beyond_8_mib_of_texts() {
    let storage = in_memory();
    storage.queue::<Task>().await.unwrap();
    let poison = "tasks-poison".parse().unwrap();
    storage.queues().create_queue(&poison, &Metadata::new()).await.unwrap();
    let filling = "x".repeat(60_000);
    let letters: Vec<_> = (100..300).map(|number| PutMessage::new(format!("{number} {filling}"))).collect();
    assert!(storage.queues().put_all(&poison, letters.into()).await.iter().all(Result::is_ok));
    let found = operator(&storage).dead_letters("tasks", &DeadLetterFilter::new().text("xxx")).await.unwrap();
    assert_eq!((found.matching, found.looked_at, found.complete), (200, 200, true));
    assert_eq!(found.letters.len(), 140, "the last of them exceeds the bound");
}
