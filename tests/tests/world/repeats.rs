//! One seed determines one run, call by call and byte by byte.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::clock::Clock;
use jobqueue::memory::TokioClock;
use jobqueue::storage::Operation;
use jobqueue::{Context, JobError, QueueMessage, Runtime, SendOptions, Worker};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_testing::simulation::Process;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "repeats", kind = "repeat", lease = "10s")]
struct Repeat {
    number: u32,
    filling: String,
}

async fn handle(repeat: Repeat, ctx: Context) -> Result<(), JobError> {
    sleep(Duration::from_millis(100)).await;
    ctx.checkpoint(&repeat.number).await?;
    if repeat.number.is_multiple_of(3) {
        return Err(JobError::retry(std::io::Error::other("not yet")));
    }
    Ok(())
}

/// Two processes work while a third sends; the second is killed, and a fourth replaces it.
async fn run(number: u64) -> String {
    let wall = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::at(wall));
    let runtime = Runtime::virtual_time(clock).with_seed(number);
    let faulty = Faulty::deleting_one_by_one(&jobqueue::memory::open_on(runtime.clone()));
    let log = Arc::new(Mutex::new(String::new()));
    let begun = Instant::now();
    for operation in Operation::ALL {
        let log = Arc::clone(&log);
        faulty.on(*operation, move |call| {
            writeln!(log.lock().unwrap(), "{:?} {} {}", begun.elapsed(), call.operation, call.subject)
                .unwrap();
            Some(Fault::DelayAfter(Duration::from_millis(5 + call.nth % 20)))
        });
    }
    let start = |process: &Process| {
        let runtime = runtime.clone().with_task_gate(Arc::new(process.clone()));
        let storage = faulty.storage().with_runtime(runtime.clone());
        let worker = Worker::builder(storage).handle(handle).build().unwrap();
        drop(runtime.spawn(worker.run_until(std::future::pending())));
    };
    let processes: Vec<_> = (0..3).map(|_| Process::default()).collect();
    processes[..2].iter().for_each(start);
    let queue = faulty.storage().queue::<Repeat>().await.unwrap();
    for number in 0..30 {
        let filling = "x".repeat(if number % 7 == 0 { 80_000 } else { 10 });
        let options = SendOptions::new().key((number % 2).to_string()).in_order();
        queue.send(&Repeat { number, filling }).with(options).await.unwrap();
    }
    sleep(Duration::from_secs(5)).await;
    processes[1].kill();
    start(&processes[2]);
    sleep(Duration::from_secs(120)).await;
    for letter in queue.dead_letters().unwrap().list().await.unwrap() {
        writeln!(log.lock().unwrap(), "{letter:?}").unwrap();
    }
    std::mem::take(&mut *log.lock().unwrap())
}

fn log_of(seed: u64) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(run(seed))
}

#[test]
fn a_seed_repeats_every_call_and_another_does_not() {
    let (one, again, other) = (log_of(1), log_of(1), log_of(2));
    assert!(one.lines().count() > 300, "{one}");
    for (number, (one, again)) in one.lines().zip(again.lines()).enumerate() {
        assert_eq!(one, again, "line {number}");
    }
    assert_eq!(one.len(), again.len());
    assert_ne!(one, other);
}
