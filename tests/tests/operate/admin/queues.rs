//! Queues, and their settings.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use jobqueue::clock::Clock;
use jobqueue::storage::{GetMessages, Operation, StateCounts, StoreErrorKind};
use jobqueue::{ErrorKind, JobError};
use jobqueue_admin::{DeadLetterFilter, PauseOptions, RawSend, SettingsPlan};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, clock, in_memory, task, worker};
use tokio::time::{Instant, timeout};

use crate::admin::support::{operator, put_letter, send, storages};

#[tokio::test]
async fn queues_show_length_age_and_dead_letters_as_one() {
    for (storage, _folder) in storages().await {
        let admin = operator(&storage);
        send(&admin, "mails", (0..40).map(|n| n.to_string())).await;
        put_letter(&admin, "mails-poison").await;
        put_letter(&admin, "lonely-poison").await;
        let queues = admin.queues().await.unwrap();
        let names: Vec<_> = queues.iter().map(|queue| queue.name.as_str()).collect();
        assert_eq!(names, ["lonely-poison", "mails"]);
        assert_eq!(queues[0].dead_letters, Some(1));
        let refused = admin.dead_letters("lonely-poison", &DeadLetterFilter::new()).await.unwrap_err();
        assert!(refused.to_string().contains("create it if it was deleted"), "{refused}");
        assert!(!queues[0].is_unserved(&[]), "dead letters whose queue was deleted wait for no worker");
        let mails = &queues[1];
        assert!(mails.is_unserved(&[]));
        assert_eq!(mails.length, Some(40));
        assert_eq!(mails.visible, Some(32));
        assert_eq!(mails.dead_letters, Some(1));
        assert!(
            !mails.visible_is_exact
                && mails.oldest.is_some()
                && mails.paused == Some(false)
                && mails.error.is_none()
        );
        let json = serde_json::to_value(mails).unwrap();
        assert!(json["oldest_seconds"].is_number() && json["settings"]["paused"] == "false", "{json}");
        assert!(json["settings"].get("poisonthreshold").is_none(), "each message type has its own: {json}");
    }
}

// round 31, newcomer c 12: the error and its causes said three times that there is no such queue.
#[tokio::test]
async fn error_of_a_misspelt_queue_names_it_once() {
    for (storage, _folder) in storages().await {
        let admin = operator(&storage);
        admin.create_queue("thumbnails").await.unwrap();
        let job = RawSend::json("task", "{}").unwrap();
        let errors =
            [admin.queue("thumbnials").await.unwrap_err(), admin.send("thumbnials", job).await.unwrap_err()];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::NotFound);
            let shown = format!("{error:?}");
            assert_eq!(shown, "there is no queue `thumbnials`; check its name, or create it first");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn queues_that_hang_hold_up_no_others() {
    let faulty = Faulty::new(&in_memory());
    let admin = operator(&faulty.storage());
    for number in 0..20 {
        send(&admin, &format!("mails-{number:02}"), ["1".to_owned()]).await;
    }
    let hangs = |name: &str| ["mails-00", "mails-10"].contains(&name);
    faulty.on(Operation::QueueProperties, move |call| hangs(&call.subject).then_some(Fault::Hang));
    let queues = timeout(Duration::from_secs(9), admin.queues()).await.unwrap().unwrap();
    assert!(queues.is_sorted_by_key(|queue| queue.name.clone()));
    let (hanging, others): (Vec<_>, Vec<_>) = queues.iter().partition(|queue| hangs(queue.name.as_str()));
    assert_eq!((hanging.len(), others.len()), (2, 18));
    for queue in hanging {
        assert_eq!(queue.length, None);
        assert!(queue.error.as_ref().unwrap().contains("no answer within 8s"), "{:?}", queue.error);
    }
    assert!(others.iter().all(|queue| (queue.length, &queue.error) == (Some(1), &None)));
}

#[tokio::test(start_paused = true)]
async fn backlog_has_the_age_that_operators_see() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("later")).delay(Duration::from_secs(3_600)).await.unwrap();
    after(3_660).await;
    let backlog = queue.backlog().await.unwrap();
    let shown = operator(&storage).queue("tasks").await.unwrap();
    assert_eq!((Some(backlog.length), backlog.oldest), (shown.length, shown.oldest));
    assert_eq!(backlog.oldest, Some(Duration::from_secs(60)));
}

// M
#[tokio::test]
async fn counts_by_state_tell_what_waits_runs_and_backs_off() {
    for (storage, _folder) in storages().await {
        let queue = storage.queue::<Task>().await.unwrap();
        for name in ["a", "b", "c", "d", "e"] {
            let _ = queue.send(&task(name)).await.unwrap();
        }
        let hour = Duration::from_secs(3_600);
        let _ = queue.send(&task("later")).delay(hour).await.unwrap();
        let mut running = Vec::new();
        for _ in 0..3 {
            running.push(queue.receive(Duration::ZERO).await.unwrap().unwrap());
        }
        running.pop().unwrap().release(hour).await.unwrap();
        let counts = queue.counts_by_state().await.unwrap().unwrap();
        assert_eq!(counts.waiting, 2);
        assert_eq!(counts.delayed, 1);
        assert_eq!(counts.backing_off, 1);
        assert_eq!(counts.running, 2);
        assert_eq!(counts.total(), queue.approximate_len().await.unwrap());
        let shown = operator(&storage).queue("tasks").await.unwrap();
        // Each count has its own time.
        assert_eq!(shown.states.map(|shown| StateCounts { now: counts.now, ..shown }), Some(counts));
        for delivery in running {
            delivery.complete().await.unwrap();
        }
        let counts = queue.counts_by_state().await.unwrap().unwrap();
        assert_eq!(counts.total(), 4);
        assert_eq!(counts.running, 0);
    }
}

#[tokio::test]
async fn missing_queue_is_not_found_and_not_created() {
    let (storage, _) = storages().await.remove(0);
    let admin = operator(&storage);
    assert_eq!(admin.queue("nothing").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(admin.peek("nothing").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(admin.pause("nothing").await.unwrap_err().kind(), ErrorKind::NotFound);
    // round 34, A10: it was paused, and nothing stood still.
    assert_eq!(admin.pause("nothing-poison").await.unwrap_err().kind(), ErrorKind::Invalid);
    let error = admin.redrive("nothing").filter(DeadLetterFilter::all()).run().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(admin.queues().await.unwrap().is_empty());
    assert_eq!(admin.queue("No Such Name").await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn pause_and_resume_keep_other_settings() {
    for (storage, _folder) in storages().await {
        let admin = operator(&storage);
        send(&admin, "mails", []).await;
        let plan =
            admin.plan_settings("mails", [("poisonthreshold", Some("3")), ("own", Some("x"))]).await.unwrap();
        assert!(plan.changes.iter().any(|change| change.name == "own" && change.warning.is_some()));
        let plan = admin.plan_settings("mails", [("PoisonThreshold", Some("3"))]).await.unwrap();
        admin.apply_settings(&plan).await.unwrap();
        assert!(admin.pause("mails").await.unwrap());
        assert!(!admin.pause("mails").await.unwrap(), "it is paused already");
        let paused = admin.queue("mails").await.unwrap();
        assert!(paused.paused == Some(true) && paused.settings["poisonthreshold"] == "3");
        assert!(admin.resume("mails").await.unwrap() && !admin.resume("mails").await.unwrap());
        let resumed = admin.queue("mails").await.unwrap();
        assert!(resumed.paused == Some(false) && resumed.settings["poisonthreshold"] == "3");
        assert_eq!(resumed.metadata.len(), 1, "nothing is left of the pause: {:?}", resumed.metadata);
    }
}

#[tokio::test]
async fn pause_has_an_end_a_note_and_an_author() {
    for (storage, _folder) in storages().await {
        let admin = operator(&storage);
        send(&admin, "mails", []).await;
        let until = SystemTime::now() + Duration::from_secs(3_600);
        let note = "Größe 100 %, \"the bank\" is down";
        assert!(admin.pause("mails").await.unwrap());
        let options = || PauseOptions::new().until(until).note(note);
        let refused = admin.pause_with("mails", options()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "another operator may have paused it without an end");
        assert!(refused.to_string().contains("is paused already by ada"), "{refused}");
        assert!(admin.pause_with("mails", options().replacing(true)).await.unwrap());
        let refused = admin.pause("mails").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "the queue would run again at the end of that pause");
        let pause = admin.queue("mails").await.unwrap().pause.unwrap();
        assert_eq!((pause.by.as_deref(), pause.note.as_deref()), (Some("ada"), Some(note)));
        assert_eq!(pause.until, Some(until));
        assert!(admin.resume("mails").await.unwrap());
        let resumed = admin.queue("mails").await.unwrap();
        assert!(resumed.pause.is_none() && resumed.metadata.is_empty(), "{resumed:?}");
        let wrongs = [
            options().until(SystemTime::UNIX_EPOCH),
            options().until(SystemTime::UNIX_EPOCH + Duration::from_secs(400_000_000_000)),
            options().length(Duration::MAX),
            options().note("x".repeat(201)),
        ];
        for wrong in wrongs {
            let refused = admin.pause_with("mails", wrong).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid);
        }
        assert_eq!(admin.queue("mails").await.unwrap().paused, Some(false));
    }
}

#[tokio::test(start_paused = true)]
async fn paused_queue_resumes_by_itself_at_its_time() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let admin = operator(&storage);
    let until = clock().now() + Duration::from_secs(7_200);
    assert!(admin.pause_with("tasks", PauseOptions::new().until(until)).await.unwrap());
    let _ = queue.send(&task("one")).await.unwrap();
    let started = Arc::<Mutex<Option<SystemTime>>>::default();
    let handler = {
        let started = Arc::clone(&started);
        move |_: Task| {
            *started.lock().unwrap() = Some(clock().now());
            async { Ok::<_, JobError>(()) }
        }
    };
    let report = worker(&storage).handle(handler).build().unwrap().run_until(after(3 * 3_600)).await.unwrap();
    assert_eq!(report.completed, 1);
    let started = started.lock().unwrap().unwrap();
    assert!(started >= until && started < until + Duration::from_secs(60), "{started:?}, {until:?}");
    let open = admin.queue("tasks").await.unwrap();
    assert!(open.paused == Some(false) && open.pause.is_none(), "{open:?}");
    assert_eq!(open.settings["paused"], "false");
    assert!(admin.resume("tasks").await.unwrap(), "workers of an older version are paused until this");
    assert!(admin.queue("tasks").await.unwrap().metadata.is_empty());
    assert!(!admin.resume("tasks").await.unwrap(), "it is not paused any more");
}

#[tokio::test]
async fn pause_is_no_setting() {
    let (storage, _) = storages().await.remove(0);
    let admin = operator(&storage);
    send(&admin, "mails", []).await;
    assert!(admin.pause("mails").await.unwrap());
    let by_settings = [("paused", None), ("Paused", Some("false")), ("pausedby", Some("eve"))];
    for (name, value) in by_settings {
        let plan = admin.plan_settings("mails", [(name, value)]).await.unwrap();
        assert!(plan.changes[0].warning.is_some(), "{name}: {value:?}");
        assert_eq!(admin.apply_settings(&plan).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    let queue = admin.queue("mails").await.unwrap();
    assert_eq!(queue.pause.as_ref().unwrap().by.as_deref(), Some("ada"));
    assert!(queue.effective_settings().iter().all(|setting| !setting.name.starts_with("paus")));
}

async fn plan(admin: &jobqueue_admin::Admin, value: &str) -> SettingsPlan {
    admin.plan_settings("mails", [("defaulttimeout", Some(value))]).await.unwrap()
}

#[tokio::test]
async fn plan_is_refused_when_the_queue_has_changed_since() {
    let (storage, _) = storages().await.remove(0);
    let admin = operator(&storage);
    send(&admin, "mails", []).await;
    let (first, second) = (plan(&admin, "60").await, plan(&admin, "90").await);
    admin.apply_settings(&first).await.unwrap();
    assert_eq!(admin.apply_settings(&second).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert!(plan(&admin, "60").await.is_empty(), "no drift");
    let drift = plan(&admin, "90").await;
    assert_eq!(drift.changes[0].from.as_deref(), Some("60"));
    assert_eq!(drift.changes[0].to.as_deref(), Some("90"));
}

#[tokio::test]
async fn values_that_workers_would_not_use_are_not_applied() {
    let (storage, _) = storages().await.remove(0);
    let admin = operator(&storage);
    send(&admin, "mails", []).await;
    for bad in ["0", "a\r\nb", "ä", "", "9999999999"] {
        let plan = plan(&admin, bad).await;
        assert!(plan.changes[0].warning.is_some(), "{bad:?}");
        assert_eq!(admin.apply_settings(&plan).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert!(admin.queue("mails").await.unwrap().metadata.is_empty());
}

// D18
#[tokio::test(start_paused = true)]
async fn job_that_was_delayed_has_waited_since_it_was_due() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("later")).delay(Duration::from_secs(3_600)).await.unwrap();
    after(3_610).await;
    let oldest = operator(&storage).queue("tasks").await.unwrap().oldest;
    assert_eq!(oldest, Some(Duration::from_secs(10)));
}

// A key of which the first job runs for long is no backlog that workers could work off.
#[tokio::test(start_paused = true)]
async fn job_that_waits_for_another_of_its_key_is_not_the_oldest() {
    let storage = in_memory();
    let (queue, admin) = (storage.queue::<Task>().await.unwrap(), operator(&storage));
    for key in ["a", "a", "b", "b"] {
        let _ = queue.send(&task(key)).key(key).in_order().await.unwrap();
    }
    let get = GetMessages::new(32, Duration::from_secs(3_600));
    let running = storage.queues().get(&"tasks".parse().unwrap(), get).await.unwrap();
    assert_eq!(running.messages.len(), 2, "the first of each key");
    after(600).await;
    let blocked = admin.queue("tasks").await.unwrap();
    assert_eq!((blocked.states.unwrap().waiting, blocked.oldest), (2, None));
    assert_eq!((blocked.held_up, blocked.oldest_held_up), (true, Some(Duration::from_secs(600))));
    let _ = queue.send(&task("free")).await.unwrap();
    after(5).await;
    assert_eq!(admin.queue("tasks").await.unwrap().oldest, Some(Duration::from_secs(5)));
}

#[tokio::test(start_paused = true)]
async fn job_that_becomes_due_during_a_look_has_not_waited() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("later")).delay(Duration::from_secs(3_600)).await.unwrap();
    after(3_000).await;
    // The first is that of all visible messages, the second that of the first one due.
    faulty.plan(Operation::Peek, 1, Fault::DelayBefore(Duration::from_secs(700)));
    let overview = operator(&storage).queue("tasks").await.unwrap();
    assert_eq!((overview.visible, overview.oldest), (Some(1), Some(Duration::ZERO)));
}

/// The storage of blobs may be the cause of the incident, and may be another account than that of the queues.
#[tokio::test(start_paused = true)]
async fn pause_does_not_wait_for_the_time_of_a_storage_that_hangs() {
    let storage = in_memory();
    // Quiet: the time that passes is that of the pause alone.
    let faulty = Faulty::quiet(&storage);
    let admin = operator(&faulty.storage());
    for queue in ["mails", "letters"] {
        admin.create_queue(queue).await.unwrap();
    }
    for operation in [Operation::ListBlobs, Operation::QueueProperties] {
        faulty.plan_always(operation, Fault::Hang);
    }
    let began = Instant::now();
    for is_new in [true, false] {
        let paused = timeout(Duration::from_secs(60), admin.pause("mails")).await;
        assert_eq!(paused.expect("it needs no time").unwrap(), is_new);
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    let hour = PauseOptions::new().length(Duration::from_secs(3_600));
    let paused = timeout(Duration::from_secs(5), admin.pause_with("letters", hour)).await;
    let refused = paused.expect("it waits for the time for two seconds").unwrap_err();
    assert!(refused.is_retryable(), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn queue_that_cannot_be_read_has_no_figures() {
    let faulty = Faulty::new(&in_memory());
    let admin = operator(&faulty.storage());
    send(&admin, "mails", ["1".to_owned()]).await;
    faulty.plan_always(Operation::QueueProperties, Fault::Refuse(StoreErrorKind::Unavailable));
    let [queue] = &admin.queues().await.unwrap()[..] else { panic!("one queue") };
    assert!(queue.error.is_some());
    let json = serde_json::to_value(queue).unwrap();
    for name in ["length", "visible", "oldest_seconds", "dead_letters", "paused"] {
        assert!(json[name].is_null(), "{name}: {json}");
    }
}

#[tokio::test]
async fn last_of_several_values_of_a_setting_counts() {
    let (storage, _) = storages().await.remove(0);
    let admin = operator(&storage);
    send(&admin, "mails", []).await;
    admin.apply_settings(&plan(&admin, "90").await).await.unwrap();
    let twice = [("defaulttimeout", Some("60")), ("DefaultTimeout", Some("90"))];
    assert!(admin.plan_settings("mails", twice).await.unwrap().is_empty(), "it is 90 already");
}

// A scrape waits for 9 seconds. audit 25, operator C8
#[tokio::test(start_paused = true)]
async fn list_comes_within_its_time_however_many_queues_hang() {
    for (hanging, of) in [(9, 20), (120, 130)] {
        let faulty = Faulty::new(&in_memory());
        let admin = operator(&faulty.storage());
        for number in 0..of {
            admin.create_queue(&format!("mails-{number:03}")).await.unwrap();
        }
        let hangs = move |name: &str| name.trim_start_matches("mails-") < format!("{hanging:03}").as_str();
        faulty.on(Operation::QueueProperties, move |call| hangs(&call.subject).then_some(Fault::Hang));
        let queues = timeout(Duration::from_millis(8_100), admin.queues()).await.unwrap().unwrap();
        assert_eq!(queues.len(), of);
        if hanging == 9 {
            let read = queues.iter().filter(|queue| queue.error.is_none()).count();
            assert_eq!(read, of - hanging, "those that hang take no place for long");
        }
    }
}
