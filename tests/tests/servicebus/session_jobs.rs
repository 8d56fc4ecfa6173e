//! Jobs in order on queues that require sessions, and programs of others that use the same sessions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::{JobError, JobInfo, SendOptions, Worker, WorkerBuilder};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::jobs::{Work, work};
use super::{Bench, MINUTE, python};

/// Lists what ran, in its order. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    pub(super) fn note(&self, name: &str) {
        self.0.lock().unwrap().push(name.to_owned());
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

fn worker(bench: &Bench) -> WorkerBuilder {
    Worker::builder(bench.another()).concurrency(2).max_idle_delay(Duration::from_millis(200))
}

impl Bench {
    /// Runs workers until the queue is empty.
    async fn work_off<F>(&self, worker: F)
    where
        F: Fn() -> Worker,
    {
        let working = async {
            while self.count("active") > 0 {
                let workers = [worker().run_until_idle(), worker().run_until_idle()];
                for report in futures_util::future::join_all(workers).await {
                    let _ = report.unwrap();
                }
            }
        };
        timeout(4 * MINUTE, working).await.expect("jobs are left");
    }
}

// I12, I21
#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_key_run_in_order_without_a_group_log() {
    const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];
    const EACH: usize = 5;
    let bench = Bench::of_sessions();
    let queue = bench.storage.queue::<Work>().await.unwrap();
    let jobs: Vec<_> = (0..EACH)
        .flat_map(|number| {
            KEYS.map(|key| (work(&format!("{key} {number}")), SendOptions::new().key(key).in_order()))
        })
        .collect();
    for sent in queue.send_all(jobs).await.unwrap() {
        sent.unwrap();
    }
    for number in 0..3 {
        queue.send(&work(&format!("free {number}"))).await.unwrap();
    }
    let seen = Seen::default();
    bench
        .work_off(|| {
            let seen = seen.clone();
            let handler = move |job: Work, info: JobInfo| {
                let seen = seen.clone();
                async move {
                    if job.name.ends_with(" 2") && info.attempt == 1 {
                        return Err(JobError::retry("holds up its key"));
                    }
                    seen.note(&job.name);
                    Ok(())
                }
            };
            worker(&bench).handle(handler).build().unwrap()
        })
        .await;
    let mut by_key = BTreeMap::<_, Vec<usize>>::new();
    for line in seen.all() {
        let (key, number) = line.split_once(' ').unwrap();
        by_key.entry(key.to_owned()).or_default().push(number.parse().unwrap());
    }
    let mut free = by_key.remove("free").unwrap();
    free.sort_unstable();
    assert_eq!(free, [0, 1, 2]);
    for key in KEYS {
        assert_eq!(by_key[key], (0..EACH).collect::<Vec<_>>(), "{key}");
    }
    assert!(bench.no_blobs("jobqueue-fifo", "").await, "the order was written twice");
    assert!(bench.no_blobs("jobqueue-servicebus", "texts/").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_job_goes_on_after_a_dead_letter_and_a_redrive_comes_last() {
    let bench = Bench::of_sessions();
    let queue = bench.storage.queue::<Work>().await.unwrap();
    for name in ["0", "bad", "2"] {
        queue.send(&work(name)).key("a").in_order().await.unwrap();
    }
    let (seen, is_well) = (Seen::default(), Arc::new(Mutex::new(false)));
    let build = || {
        let (seen, is_well) = (seen.clone(), Arc::clone(&is_well));
        let handler = move |job: Work| {
            let (seen, is_well) = (seen.clone(), Arc::clone(&is_well));
            async move {
                if job.name == "bad" && !*is_well.lock().unwrap() {
                    return Err(JobError::dead_letter("bad"));
                }
                seen.note(&job.name);
                Ok(())
            }
        };
        worker(&bench).handle(handler).build().unwrap()
    };
    bench.work_off(build).await;
    assert_eq!(seen.all(), ["0", "2"]);
    *is_well.lock().unwrap() = true;
    queue.send(&work("3")).key("a").in_order().await.unwrap();
    let dead = queue.dead_letters().unwrap();
    assert_eq!(dead.redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1);
    queue.send(&work("4")).key("a").in_order().await.unwrap();
    bench.work_off(build).await;
    assert_eq!(seen.all(), ["0", "2", "3", "bad", "4"]);
}

#[tokio::test]
async fn a_running_worker_takes_the_jobs_of_new_keys_at_once() {
    let bench = Bench::of_sessions();
    let queue = bench.storage.queue::<Work>().await.unwrap();
    let (begun, mut jobs) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |job: Work| {
        begun.send(job.name).unwrap();
        async { Ok::<(), JobError>(()) }
    };
    // A pause longer than the test: nothing but the arrival of a session wakes the worker.
    let worker = Worker::builder(bench.another()).max_idle_delay(60 * MINUTE).handle(handler);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(worker.build().unwrap().run_until(async { drop(stopped.await) }));
    for number in 0..4 {
        let name = number.to_string();
        queue.send(&work(&name)).key(name.clone()).in_order().await.unwrap();
        assert_eq!(timeout(MINUTE, jobs.recv()).await.expect("the job did not begin").unwrap(), name);
    }
    stop.send(()).unwrap();
    assert_eq!(running.await.unwrap().unwrap().completed, 4);
}

const SEND: &str = "
import json, sys
from azure.servicebus import ServiceBusClient, ServiceBusMessage
with ServiceBusClient.from_connection_string(sys.argv[1]) as client:
    with client.get_queue_sender('work') as sender:
        for number in range(4):
            for key in 'ab':
                event = {'specversion': '1.0', 'id': f'{key}{number}', 'source': 'urn:py', 'type': 'work',
                         'data': {'name': f'{key} {number}'}}
                sender.send_messages(ServiceBusMessage(json.dumps(event), session_id=key))
";

#[tokio::test(flavor = "multi_thread")]
async fn session_messages_of_a_python_producer_run_in_order() {
    let bench = Bench::of_sessions();
    let _ = bench.storage.queue::<Work>().await.unwrap();
    python::run(bench.emulator.connection_string(), SEND, &[]);
    let seen = Seen::default();
    bench
        .work_off(|| {
            let seen = seen.clone();
            let handler = move |job: Work| {
                seen.note(&job.name);
                async { Ok::<(), JobError>(()) }
            };
            worker(&bench).handle(handler).build().unwrap()
        })
        .await;
    for key in ["a", "b"] {
        let of_key: Vec<_> = seen.all().into_iter().filter(|name| name.starts_with(key)).collect();
        assert_eq!(of_key, (0..4).map(|number| format!("{key} {number}")).collect::<Vec<_>>());
    }
}

const RECEIVE: &str = "
import json, sys
from azure.servicebus import ServiceBusClient
read = []
with ServiceBusClient.from_connection_string(sys.argv[1]) as client:
    for key in 'ab':
        with client.get_queue_receiver('work', session_id=key) as receiver:
            while len([one for one in read if one['session'] == key]) < 4:
                for message in receiver.receive_messages(max_message_count=1, max_wait_time=20):
                    read.append({'session': message.session_id, 'event': json.loads(str(message))})
                    receiver.complete_message(message)
print(json.dumps(read))
";

#[tokio::test]
async fn a_python_session_receiver_reads_our_jobs_in_order() {
    let bench = Bench::of_sessions();
    let queue = bench.storage.queue::<Work>().await.unwrap();
    for number in 0..4 {
        for key in ["a", "b"] {
            queue.send(&work(&format!("{key} {number}"))).key(key).in_order().await.unwrap();
        }
    }
    let read: Value =
        serde_json::from_str(&python::run(bench.emulator.connection_string(), RECEIVE, &[])).unwrap();
    let names: Vec<_> =
        read.as_array().unwrap().iter().map(|one| one["event"]["data"]["name"].clone()).collect();
    let expected = ["a 0", "a 1", "a 2", "a 3", "b 0", "b 1", "b 2", "b 3"].map(|name| json!(name));
    assert_eq!(names, expected);
    assert_eq!(bench.count("active"), 0);
}

// The session was released with the refusal, and the finished job ran again.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_that_the_service_is_too_busy_for_ends_its_job_later() {
    let bench = Bench::of_sessions();
    let queue = bench.storage.queue::<Work>().await.unwrap();
    let busy = |operation: &'static str| (operation, json!({ "action": "busy" }));
    let lost =
        ("update-disposition", json!({ "action": "error", "condition": "com.microsoft:message-lock-lost" }));
    let refused =
        ("update-disposition", json!({ "action": "error", "condition": "amqp:not-allowed", "times": null }));
    for faults in [
        vec![busy("complete")],
        vec![busy("complete"), busy("update-disposition")],
        vec![busy("complete"), lost],
        // The session is given back after three seconds, and the job is delivered again while its deletion is
        // still tried.
        vec![busy("complete"), refused],
    ] {
        for (operation, fields) in &faults {
            bench.emulator.plant_with(operation, fields["action"].as_str().unwrap(), fields.clone());
        }
        let seen = Seen::default();
        queue.send(&work("one")).key("k").in_order().await.unwrap();
        let ran = seen.clone();
        let handler = move |job: Work| {
            ran.note(&job.name);
            async { Ok::<(), JobError>(()) }
        };
        let worker = Worker::builder(bench.storage.clone()).concurrency(1).handle(handler).build().unwrap();
        let report = timeout(2 * MINUTE, worker.run_until_idle()).await.expect("it does not end").unwrap();
        assert_eq!((seen.all(), bench.count("active")), (vec!["one".to_owned()], 0), "{faults:?} {report:?}");
        bench.emulator.clear_faults();
    }
}
