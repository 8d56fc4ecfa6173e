//! The length of queues and the age of their oldest message, as gauges.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join;
use futures_util::{StreamExt, stream};
use jobqueue::storage::{MAX_MESSAGES, StoreError};
use jobqueue::{Error, QueueName, Storage};
use opentelemetry::KeyValue;
use opentelemetry::metrics::ObservableGauge;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::attributes::destination;
use crate::conventions::{QUEUE_LENGTH, QUEUE_OLDEST};
use crate::telemetry::Telemetry;

/// The number of intervals after which figures are no longer reported, and the period in which their age is judged.
const STALE: u32 = 3;
const JUDGE_EVERY: Duration = Duration::from_secs(1);
/// The most queues that are read at the same time.
const READS_AT_ONCE: usize = 16;

/// The numbers of the queues, as they were last read.
type Readings = Arc<Mutex<BTreeMap<QueueName, Reading>>>;

#[derive(Debug, Clone, Copy)]
struct Reading {
    length: u64,
    oldest: Duration,
    read: Instant,
}

impl Telemetry {
    /// Reads the length of these queues and the age of their oldest message at this interval, for the gauges `jobqueue.queue.length` and
    /// `jobqueue.queue.oldest_age`, until the future is dropped. One process for all is enough. Each reading costs two requests for each
    /// queue; the shortest interval is one second.
    ///
    /// A queue that cannot be read keeps its last numbers for three intervals, and then has none: it never counts as empty.
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::Storage; use std::time::Duration;
    /// # let telemetry = jobqueue_opentelemetry::Telemetry::new();
    /// # let storage = Storage::memory();
    /// let watch = telemetry.watch_queues(&storage, &["mails", "thumbnails"], Duration::from_secs(30))?;
    /// tokio::spawn(watch);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Invalid`](jobqueue::ErrorKind::Invalid) for a name that is not one of a queue.
    pub fn watch_queues(
        &self,
        storage: &Storage,
        queues: &[&str],
        every: Duration,
    ) -> Result<impl Future<Output = ()> + Send + 'static, Error> {
        let queues = queues.iter().map(QueueName::new).collect::<Result<Vec<_>, _>>()?;
        let every = every.max(Duration::from_secs(1));
        let (storage, readings) = (storage.clone(), Readings::default());
        let gauges = self.gauges(&readings);
        Ok(async move {
            // Dropped with the future, which ends the reports.
            let _told = Told { readings: Arc::clone(&readings), _gauges: gauges };
            let looks = async {
                let mut interval = interval(every);
                interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    interval.tick().await;
                    let read = |queue| read(&storage, queue, every, &readings);
                    stream::iter(&queues).for_each_concurrent(READS_AT_ONCE, read).await;
                }
            };
            // Meanwhile: a look at a storage that hangs takes long.
            let forgets = async {
                let mut interval = interval(JUDGE_EVERY);
                loop {
                    interval.tick().await;
                    let mut readings = readings.lock().unwrap_or_else(PoisonError::into_inner);
                    readings.retain(|_, reading| reading.read.elapsed() < every * STALE);
                }
            };
            join(looks, forgets).await;
        })
    }

    fn gauges(&self, readings: &Readings) -> (ObservableGauge<u64>, ObservableGauge<f64>) {
        let meter = &self.shared().meter;
        let all = |readings: &Readings| -> Vec<(KeyValue, Reading)> {
            let readings = readings.lock().unwrap_or_else(PoisonError::into_inner);
            readings.iter().map(|(queue, reading)| (destination(queue), *reading)).collect()
        };
        let lengths = Arc::clone(readings);
        let length = meter.u64_observable_gauge(QUEUE_LENGTH).with_unit("{message}");
        let length =
            length.with_description("Approximate number of messages in a queue, invisible ones included.");
        let length = length.with_callback(move |observer| {
            for (queue, reading) in all(&lengths) {
                observer.observe(reading.length, &[queue]);
            }
        });
        let ages = Arc::clone(readings);
        let oldest = meter.f64_observable_gauge(QUEUE_OLDEST).with_unit("s");
        let oldest = oldest.with_description("Age of the oldest of the next messages of a queue.");
        let oldest = oldest.with_callback(move |observer| {
            for (queue, reading) in all(&ages) {
                observer.observe(reading.oldest.as_secs_f64(), &[queue]);
            }
        });
        (length.build(), oldest.build())
    }
}

async fn read(storage: &Storage, queue: &QueueName, every: Duration, readings: &Readings) {
    match tokio::time::timeout(every, look_at(storage, queue)).await {
        Ok(Ok(reading)) => {
            let mut readings = readings.lock().unwrap_or_else(PoisonError::into_inner);
            readings.insert(queue.clone(), reading);
        }
        failed => {
            let error = failed.ok().and_then(Result::err);
            tracing::debug!(%queue, ?error, "the length of the queue cannot be read now");
        }
    }
}

async fn look_at(storage: &Storage, queue: &QueueName) -> Result<Reading, StoreError> {
    let properties = storage.queues().queue_properties(queue).await?;
    let peeked = storage.queues().peek(queue, MAX_MESSAGES).await?;
    let oldest = peeked.iter().map(|message| message.inserted).min();
    let now = storage.runtime().clock().now();
    Ok(Reading {
        length: properties.approximate_count.max(peeked.len() as u64),
        // Two clocks may differ: what was inserted in the future is new.
        oldest: oldest.and_then(|at| now.duration_since(at).ok()).unwrap_or_default(),
        read: Instant::now(),
    })
}

/// The readings that gauges tell, until this is dropped.
struct Told {
    readings: Readings,
    _gauges: (ObservableGauge<u64>, ObservableGauge<f64>),
}

impl Drop for Told {
    fn drop(&mut self) {
        self.readings.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
