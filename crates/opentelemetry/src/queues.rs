//! Gauges of the messages of queues, the age of their oldest message, their dead letters and their pauses.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join;
use futures_util::{StreamExt, stream};
use jobqueue::__internals::QueueReading;
use jobqueue::message::MessageDefaults;
use jobqueue::settings::{QueueSettings, SettingOverrides};
use jobqueue::storage::{StateCounts, StoreError};
use jobqueue::{Error, QueueName, Storage};
use opentelemetry::metrics::ObservableGauge;
use scopeguard::guard;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::attributes::{Attributes, StorageAttributes};
use crate::conventions::{
    QUEUE_BACKING_OFF, QUEUE_DEAD_LETTERS, QUEUE_DELAYED, QUEUE_LENGTH, QUEUE_OLDEST, QUEUE_PAUSED,
    QUEUE_WAITING,
};
use crate::telemetry::Telemetry;

/// The number of intervals after which figures are no longer reported, and how often their age is checked.
const STALE_INTERVALS: u32 = 3;
const STALE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of queues that are read at the same time.
const CONCURRENT_READS: usize = 16;

/// The figures of the queues, as they were last read.
type Readings = Arc<Mutex<BTreeMap<QueueName, Reading>>>;

type Gauges = ([ObservableGauge<u64>; 6], ObservableGauge<f64>);

#[derive(Debug, Clone, Copy)]
struct Reading {
    /// `None` if the storage cannot count the messages.
    length: Option<u64>,
    /// `None` if the storage cannot count by state, and a peek does not show all visible messages.
    waiting: Option<u64>,
    /// `None` if the storage cannot count by state.
    states: Option<StateCounts>,
    /// `None` if visible messages may lie behind the messages that a peek shows, or if the storage does not
    /// return its time.
    oldest: Option<Duration>,
    /// `None` if the dead letters could not be counted.
    dead_letters: Option<u64>,
    is_paused: bool,
    read: Instant,
}

impl Telemetry {
    /// Returns a future that reads the given queues at this interval until it is dropped, for the gauges
    /// `jobqueue.queue.length`, `waiting`, `delayed`, `backing_off`, `oldest_age`, `dead_letters` and
    /// `paused`. The figures are the same as in `jobqueue queue show`. It is enough to run it in one process.
    ///
    /// The shortest interval is one second. Each reading costs three requests per queue, two more if the
    /// storage can list all its jobs and count them by state (SQLite, PostgreSQL, memory), and a listing if
    /// none of these returns the time of the storage. The figures of a queue that cannot be read stay for
    /// three intervals and then disappear: an unread queue never counts as empty. A figure that the storage
    /// does not show has no value.
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
    /// [`Invalid`](jobqueue::ErrorKind::Invalid) if a name is not a valid queue name.
    pub fn watch_queues(
        &self,
        storage: &Storage,
        queues: &[&str],
        every: Duration,
    ) -> Result<impl Future<Output = ()> + Send + 'static, Error> {
        let queues = queues.iter().map(QueueName::new).collect::<Result<Vec<_>, _>>()?;
        let every = every.max(Duration::from_secs(1));
        let (storage, readings) = (storage.clone(), Readings::default());
        let gauges = self.gauges(&StorageAttributes::of(&storage), &readings);
        Ok(async move {
            // Dropped with the future, so that the gauges report nothing any more.
            let _clear_on_drop = guard((Arc::clone(&readings), gauges), |(readings, _)| {
                readings.lock().unwrap_or_else(PoisonError::into_inner).clear();
            });
            let reading = async {
                let mut interval = interval(every);
                interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    interval.tick().await;
                    let read = |queue| read(&storage, queue, every, &readings);
                    stream::iter(&queues).for_each_concurrent(CONCURRENT_READS, read).await;
                }
            };
            // Runs concurrently, because reading a storage that hangs takes long.
            let forgetting = async {
                let mut interval = interval(STALE_CHECK_INTERVAL);
                loop {
                    interval.tick().await;
                    let mut readings = readings.lock().unwrap_or_else(PoisonError::into_inner);
                    readings.retain(|_, reading| reading.read.elapsed() < every * STALE_INTERVALS);
                }
            };
            join(reading, forgetting).await;
        })
    }

    fn gauges(&self, storage: &StorageAttributes, readings: &Readings) -> Gauges {
        let meter = &self.shared().meter;
        let all = |storage: &StorageAttributes, readings: &Readings| -> Vec<(Attributes, Reading)> {
            let readings = readings.lock().unwrap_or_else(PoisonError::into_inner);
            readings.iter().map(|(queue, reading)| (storage.with_queue(queue, None), *reading)).collect()
        };
        let count = |(name, about, figure): Count| {
            let (storage, readings) = (storage.clone(), Arc::clone(readings));
            let unit = if name == QUEUE_PAUSED { "1" } else { "{message}" };
            let gauge = meter.u64_observable_gauge(name).with_unit(unit).with_description(about);
            let gauge = gauge.with_callback(move |observer| {
                for (queue, reading) in all(&storage, &readings) {
                    if let Some(value) = figure(&reading) {
                        observer.observe(value, &queue);
                    }
                }
            });
            gauge.build()
        };
        let (storage, ages) = (storage.clone(), Arc::clone(readings));
        let oldest = meter.f64_observable_gauge(QUEUE_OLDEST).with_unit("s");
        let oldest = oldest.with_description(
            "Time since the oldest message that can be received was due, or was inserted where the storage shows no more; 0 if there is none, and none if that is not known.",
        );
        let oldest = oldest.with_callback(move |observer| {
            for (queue, reading) in all(&storage, &ages) {
                if let Some(oldest) = reading.oldest {
                    observer.observe(oldest.as_secs_f64(), &queue);
                }
            }
        });
        (COUNTS.map(count), oldest.build())
    }
}

/// The name and description of a gauge, and its figure, which may be unknown.
type Count = (&'static str, &'static str, fn(&Reading) -> Option<u64>);

const COUNTS: [Count; 6] = [
    (QUEUE_LENGTH, "Approximate number of messages in a queue, invisible ones included.", |reading| {
        reading.length
    }),
    (
        QUEUE_WAITING,
        "Number of messages that a worker could receive now, or after others of their groups.",
        |reading| reading.waiting,
    ),
    (QUEUE_DELAYED, "Number of messages that were sent with a delay that is not over.", |reading| {
        Some(reading.states?.delayed)
    }),
    (QUEUE_BACKING_OFF, "Number of messages that were received and put back for a time.", |reading| {
        Some(reading.states?.backing_off)
    }),
    (QUEUE_DEAD_LETTERS, "Approximate number of dead letters of a queue.", |reading| reading.dead_letters),
    (
        QUEUE_PAUSED,
        "1 while workers fetch nothing from a queue, because an operator has paused it.",
        |reading| Some(reading.is_paused.into()),
    ),
];

async fn read(storage: &Storage, queue: &QueueName, every: Duration, readings: &Readings) {
    match tokio::time::timeout(every, take_reading(storage, queue)).await {
        Ok(Ok(reading)) => {
            let mut readings = readings.lock().unwrap_or_else(PoisonError::into_inner);
            readings.insert(queue.clone(), reading);
        }
        failed => {
            let error = failed.ok().and_then(Result::err);
            let log = || tracing::debug!(%queue, ?error, "the length of the queue cannot be read now");
            // A panic in the subscriber must not end the watch.
            drop(catch_unwind(AssertUnwindSafe(log)));
        }
    }
}

async fn take_reading(storage: &Storage, queue: &QueueName) -> Result<Reading, StoreError> {
    let reading = QueueReading::take(storage, queue).await?;
    let (settings, _) =
        QueueSettings::resolve(&reading.metadata, &MessageDefaults::new(), &SettingOverrides::default());
    Ok(Reading {
        oldest: reading.age(),
        waiting: match reading.states {
            Some(states) => Some(states.waiting),
            None => reading.visible_is_exact.then_some(reading.visible),
        },
        states: reading.states,
        is_paused: settings.is_paused(reading.now),
        length: reading.length.ok(),
        dead_letters: reading.dead_letters.ok(),
        read: Instant::now(),
    })
}
