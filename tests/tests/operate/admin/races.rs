//! Changes of the settings and of the pause of a queue by two operators at once, and a pause of a schedule
//! that sends.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use jobqueue::schedule::{CatchUp, Schedule};
use jobqueue::storage::{Intercepted, Interceptor, Operation, QueuePowers};
use jobqueue::{ErrorKind, Storage};
use jobqueue_admin::{AccessLevel, OperatorResult, PauseOptions};
use jobqueue_testing::faults::{Call, Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};

use crate::admin::support::{operator, watched};

/// Returns a storage with a queue `mails` on which `meanwhile` happens before the next write of metadata, and
/// that storage without it.
async fn interrupted(
    storage: &Storage,
    meanwhile: impl FnOnce(&Storage) + Send + 'static,
) -> (Faulty, Storage) {
    let _ = operator(storage).create_queue("mails").await.unwrap();
    let faulty = Faulty::new(storage);
    let (storage, meanwhile) = (storage.clone(), Arc::new(Mutex::new(Some(meanwhile))));
    let inner = storage.clone();
    faulty.on(Operation::SetQueueMetadata, move |_: &Call| {
        if let Some(meanwhile) = meanwhile.lock().unwrap().take() {
            meanwhile(&storage);
        }
        None
    });
    (faulty, inner)
}

/// Does what needs no other task, as in memory.
fn now<T>(work: impl Future<Output = T>) -> T {
    work.now_or_never().unwrap()
}

#[tokio::test(start_paused = true)]
async fn settings_do_not_remove_a_pause_that_comes_meanwhile() {
    let pause = |storage: &Storage| assert!(now(operator(storage).pause("mails")).unwrap());
    let (faulty, storage) = interrupted(&in_memory(), pause).await;
    let admin = operator(&faulty.storage());
    let plan = admin.plan_settings("mails", [("poisonthreshold", Some("7"))]).await.unwrap();
    assert_eq!(admin.apply_settings(&plan).await.unwrap_err().kind(), ErrorKind::Conflict);
    let queue = operator(&storage).queue("mails").await.unwrap();
    assert_eq!((queue.paused, queue.settings.get("poisonthreshold")), (Some(true), None));
}

#[tokio::test(start_paused = true)]
async fn pause_keeps_settings_that_come_meanwhile() {
    let set = |storage: &Storage| {
        let admin = operator(storage);
        let plan = now(admin.plan_settings("mails", [("poisonthreshold", Some("7"))])).unwrap();
        now(admin.apply_settings(&plan)).unwrap();
    };
    for resumes in [false, true] {
        let (faulty, storage) = interrupted(&in_memory(), set).await;
        let admin = operator(&faulty.storage());
        if resumes {
            assert!(operator(&storage).pause("mails").await.unwrap());
            assert!(admin.resume("mails").await.unwrap());
        } else {
            assert!(admin.pause_with("mails", PauseOptions::new().note("deploy")).await.unwrap());
        }
        let queue = operator(&storage).queue("mails").await.unwrap();
        assert_eq!(queue.paused, Some(!resumes));
        assert_eq!(queue.settings["poisonthreshold"], "7");
    }
}

#[tokio::test(start_paused = true)]
async fn pause_that_comes_meanwhile_is_not_replaced() {
    let pause = |storage: &Storage| {
        let options = PauseOptions::new().note("the bank is down");
        assert!(now(operator(storage).pause_with("mails", options)).unwrap());
    };
    let (faulty, storage) = interrupted(&in_memory(), pause).await;
    let options = PauseOptions::new().note("deploy");
    let refused = operator(&faulty.storage()).pause_with("mails", options).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    let note = operator(&storage).queue("mails").await.unwrap().pause.unwrap().note;
    assert_eq!(note.as_deref(), Some("the bank is down"));
}

/// Hides that a storage replaces metadata on condition, as Azure Storage does not.
#[derive(Debug)]
struct Unconditional;

impl Interceptor for Unconditional {
    fn queue_powers(&self, powers: QueuePowers) -> QueuePowers {
        QueuePowers { metadata: None, ..powers }
    }
}

/// Returns a storage without conditions with a queue `mails`, to which another program adds a setting between
/// the write and the look after it.
async fn written_twice(storage: &Storage) -> Storage {
    let _ = operator(storage).create_queue("mails").await.unwrap();
    let queues = Intercepted::queues(Arc::clone(storage.queues().store()), &Arc::new(Unconditional));
    let faulty = Faulty::new(&Storage::new(queues, Arc::clone(storage.blobs()), "unconditional"));
    let (is_written, inner) = (Arc::new(Mutex::new(Some(false))), storage.clone());
    let note = Arc::clone(&is_written);
    faulty.on(Operation::SetQueueMetadata, move |_: &Call| {
        if let Some(is_written) = &mut *note.lock().unwrap() {
            *is_written = true;
        }
        None
    });
    faulty.on(Operation::QueueProperties, move |_: &Call| {
        if is_written.lock().unwrap().take_if(|is_written| *is_written).is_some() {
            let (queue, queues) = ("mails".parse().unwrap(), inner.queues());
            let metadata = now(queues.queue_metadata(&queue)).unwrap().with("poisonthreshold", "7");
            now(queues.set_queue_metadata(&queue, &metadata)).unwrap();
        }
        None
    });
    faulty.storage()
}

// review 5, operator V11
#[tokio::test(start_paused = true)]
async fn change_that_another_program_meets_is_not_said_to_be_made_or_not() {
    for resumes in [false, true] {
        let storage = in_memory();
        let faulty = written_twice(&storage).await;
        let (admin, events) = watched(&faulty, AccessLevel::Operate);
        let met = if resumes {
            let other = PauseOptions::new().note("the bank is down");
            assert!(operator(&storage).pause_with("mails", other).await.unwrap());
            admin.resume("mails").await
        } else {
            admin.pause_with("mails", PauseOptions::new().note("deploy")).await
        };
        let error = met.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.to_string().contains("it is not known whether the change is made"), "{error}");
        let event = events.lock().unwrap().last().unwrap().result.clone();
        assert!(matches!(event, OperatorResult::Failed(_)), "{event:?}");
        assert_eq!(operator(&storage).queue("mails").await.unwrap().settings["poisonthreshold"], "7");
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_pause_is_no_conflict_with_itself() {
    let storage = in_memory();
    let admin = operator(&storage);
    assert!(admin.create_queue("mails").await.unwrap());
    assert!(admin.pause_with("mails", PauseOptions::new().note("the bank is down")).await.unwrap());
    let shown = admin.queue("mails").await.unwrap().pause.unwrap();
    let deploy = PauseOptions::new().note("deploy").replacing_shown(shown);
    assert!(admin.pause_with("mails", deploy.clone()).await.unwrap());
    assert!(!admin.pause_with("mails", deploy.clone()).await.unwrap(), "it finds its own pause");
    assert!(admin.resume("mails").await.unwrap());
    let error = admin.pause_with("mails", deploy).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "the pause that was shown has ended");
}

// R17-4
#[tokio::test(start_paused = true)]
async fn pause_of_a_schedule_stops_its_catch_up() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let schedule = Schedule::every(Duration::from_secs(60)).name("ticks").missed(CatchUp::All(100));
    let lead = |seconds| {
        let leader = worker(&storage).schedule_by(schedule.clone(), || task("tick")).build().unwrap();
        leader.run_until(after(seconds))
    };
    let _ = lead(10).await.unwrap();
    after(3_600).await;
    faulty.plan_always(Operation::Put, Fault::DelayAfter(Duration::from_secs(5)));
    let operating = async {
        after(22).await;
        assert!(operator(&storage).pause_schedule("ticks").await.unwrap());
    };
    let _ = tokio::join!(lead(300), operating);
    let sent = storage.queue::<Task>().await.unwrap().approximate_len().await.unwrap();
    assert!((1..8).contains(&sent), "{sent} of 60");
}
