//! Measures the requests of a worker without work, and checks that it keeps the configured pauses.

use std::time::Duration;

use jobqueue_bench_harness::{Figures, Result, Unit};
use jobqueue_test_support::azurite::Azurite;

use crate::framework::Framework;
use crate::proxy::Log;
use crate::system::Place;

/// The first pause of a worker that finds nothing. It doubles up to the default of `max_idle_delay`; jitter
/// shortens each pause by at most a quarter.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
const SHORTENED: f64 = 0.75;

/// The greatest delay between the sending and the arrival of a request on a busy machine.
const LAG: Duration = Duration::from_millis(20);

pub(crate) async fn idle(azurite: &Azurite, quick: bool) -> Result<Figures> {
    let log = Log::default();
    let blobs = azurite.blob_endpoint().to_owned();
    let place = Place { queues: log.before(azurite.queue_endpoint()).await?, blobs, in_process: None };
    let framework = Framework::open(&place, &format!("idle-{}", uuid::Uuid::new_v4().simple())).await?;
    let time = Duration::from_secs(if quick { 2 } else { 60 });
    framework.idle(time).await?;
    let seen = log.take();
    framework.close().await?;

    let first = seen.iter().position(|seen| seen.is_get()).ok_or("it never asked")?;
    let gets: Vec<_> = seen.iter().filter(|seen| seen.is_get()).collect();
    let mut due = FIRST;
    for pair in gets.windows(2) {
        let pause = pair[1].at - pair[0].at;
        if pause + LAG < due.mul_f64(SHORTENED) {
            return Err(
                format!("asked again after {pause:?}, where {due:?} or a little less were due").into()
            );
        }
        due = (due * 2).min(LONGEST);
    }
    let mut figures = Figures::default();
    figures.put("jobqueue.idle_gets", gets.len() as f64, Unit::Count);
    figures.put("jobqueue.idle_others", (seen.len() - first - gets.len()) as f64, Unit::Count);
    figures.put("jobqueue.idle_budget", budget(time), Unit::Count);
    Ok(figures)
}

/// Returns the maximum number of gets that the pauses allow in this time, including the first.
fn budget(time: Duration) -> f64 {
    let (mut at, mut due, mut gets) = (Duration::ZERO, FIRST, 0);
    while at <= time {
        gets += 1;
        at += due.mul_f64(SHORTENED);
        due = (due * 2).min(LONGEST);
    }
    f64::from(gets)
}
