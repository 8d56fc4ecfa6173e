//! Measures jobs in order, all of one key: the rate of sends, the rate of runs, and the rate after the first
//! job was late.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jobqueue::{SendOptions, Worker};
use jobqueue_bench_harness::{Figures, Result, Seen, Setting, Subject};

use crate::subject::{Jobqueue, Running, handle};

/// The delay of the first job of the key. By its end, the other jobs have been released several times.
const STALL: Duration = Duration::from_secs(15);

pub(crate) async fn order(setting: &Setting) -> Result<Figures> {
    let (jobs, behind) = if setting.quick { (20, 5) } else { (2_000, 200) };
    let stall = if setting.quick { Duration::from_secs(1) } else { STALL };
    let mut figures = Figures::default();
    in_turn(setting, jobs, &mut figures).await?;
    after_a_stall(setting, behind, stall, &mut figures).await?;
    Ok(figures)
}

async fn in_turn(setting: &Setting, jobs: u64, figures: &mut Figures) -> Result<()> {
    let store = setting.store()?;
    let subject = Jobqueue::open(store.path()).await?;
    let began = Instant::now();
    for number in 0..jobs {
        subject.queue.send(&Jobqueue::job(number, 0)).key("one").in_order().await?;
    }
    figures.rate("order_send", jobs, began.elapsed());
    let seen = Arc::new(Seen::default());
    let began = Instant::now();
    let running = start(&subject, &seen)?;
    seen.wait_for(jobs).await?;
    figures.rate("order_process", jobs, began.elapsed());
    let _ = running.stop().await?;
    Ok(())
}

/// The clock starts once the first job has run.
async fn after_a_stall(setting: &Setting, behind: u64, stall: Duration, figures: &mut Figures) -> Result<()> {
    let store = setting.store()?;
    let subject = Jobqueue::open(store.path()).await?;
    subject.queue.send(&Jobqueue::job(0, 0)).key("one").in_order().delay(stall).await?;
    let rest: Vec<_> =
        (1..=behind).map(|number| (Jobqueue::job(number, 0), SendOptions::new().key("one"))).collect();
    for sent in subject.queue.send_all(rest).in_order().await? {
        sent?;
    }
    let seen = Arc::new(Seen::default());
    let running = start(&subject, &seen)?;
    seen.wait_for(1).await?;
    let began = Instant::now();
    seen.wait_for(1 + behind).await?;
    figures.rate("order_after_stall", behind, began.elapsed());
    let _ = running.stop().await?;
    Ok(())
}

fn start(subject: &Jobqueue, seen: &Arc<Seen>) -> Result<Running> {
    let worker = Worker::builder(subject.storage.clone()).state(Arc::clone(seen)).concurrency(64);
    Ok(Running::start(worker.handle(handle).build()?))
}
