//! The instruments of the metrics.

use std::sync::Arc;

use opentelemetry::metrics::{AsyncInstrument, Counter, Histogram, Meter, ObservableGauge, UpDownCounter};

use crate::cells::StorageCells;
use crate::conventions as names;

#[derive(Debug)]
pub(crate) struct Instruments {
    pub(crate) operation_duration: Histogram<f64>,
    pub(crate) sent: Counter<u64>,
    pub(crate) consumed: Counter<u64>,
    pub(crate) process_duration: Histogram<f64>,
    pub(crate) wait: Histogram<f64>,
    pub(crate) dead_letters: Counter<u64>,
    pub(crate) lost: Counter<u64>,
    pub(crate) renewals: Counter<u64>,
    pub(crate) transactions: Counter<u64>,
    pub(crate) throttled: Counter<u64>,
    /// Only [`Cells::flush`](crate::cells::Cells::flush) changes this counter and the next one.
    pub(crate) attempts: Counter<u64>,
    pub(crate) in_flight: UpDownCounter<i64>,
    /// The state of circuits. Collecting it also reports the accumulated counts of jobs.
    _circuit: ObservableGauge<u64>,
}

/// The name, unit and description of an instrument.
type About = (&'static str, &'static str, &'static str);

// The descriptions of the `messaging.*` instruments are quoted from the conventions.
const SENT: About =
    (names::SENT_MESSAGES, "{message}", "Number of messages producer attempted to send to the broker.");
const CONSUMED: About =
    (names::CONSUMED_MESSAGES, "{message}", "Number of messages that were delivered to the application.");
const ATTEMPTS: About = (names::JOB_ATTEMPTS, "{attempt}", "Number of deliveries that ended, by outcome.");
const DEAD_LETTERS: About = (names::JOB_DEAD_LETTERS, "{message}", "Number of dead letters stored.");
const LOST: About = (names::LEASE_LOST, "{lease}", "Number of leases that were lost.");
const RENEWALS: About = (names::LEASE_RENEWALS, "{renewal}", "Number of renewals of leases, by outcome.");
const TRANSACTIONS: About =
    (names::STORAGE_TRANSACTIONS, "{request}", "Number of requests to the storage, as billed.");
const THROTTLED: About =
    (names::STORAGE_THROTTLED, "{answer}", "Number of requests that the storage throttled.");

impl Instruments {
    pub(crate) fn new(meter: &Meter, storages: &Arc<StorageCells>) -> Self {
        let seconds = |name: &'static str, boundaries: &[f64], about: &'static str| {
            let histogram = meter.f64_histogram(name).with_unit("s").with_boundaries(boundaries.to_vec());
            histogram.with_description(about).build()
        };
        let operation = "Duration of messaging operation initiated by a producer or consumer client.";
        let wait = "Time from the insertion of a message until its first attempt.";
        let attempts = counter(meter, ATTEMPTS);
        let in_flight = meter.i64_up_down_counter(names::QUEUE_IN_FLIGHT).with_unit("{job}");
        let in_flight = in_flight.with_description("Number of handlers that run in this process.").build();
        Self {
            operation_duration: seconds(names::OPERATION_DURATION, names::DURATIONS, operation),
            sent: counter(meter, SENT),
            consumed: counter(meter, CONSUMED),
            process_duration: seconds(
                names::PROCESS_DURATION,
                names::DURATIONS,
                "Duration of processing operation.",
            ),
            wait: seconds(names::JOB_WAIT, names::WAITS, wait),
            dead_letters: counter(meter, DEAD_LETTERS),
            lost: counter(meter, LOST),
            renewals: counter(meter, RENEWALS),
            transactions: counter(meter, TRANSACTIONS),
            throttled: counter(meter, THROTTLED),
            _circuit: circuit(meter, Arc::clone(storages), attempts.clone(), in_flight.clone()),
            attempts,
            in_flight,
        }
    }
}

/// Returns the gauge of circuits. Collecting it also reports the counts accumulated since the last
/// collection. The counts have ordinary counters, because of two observable instruments with equal attributes
/// one would be lost.
fn circuit(
    meter: &Meter,
    storages: Arc<StorageCells>,
    attempts: Counter<u64>,
    in_flight: UpDownCounter<i64>,
) -> ObservableGauge<u64> {
    let circuit = meter.u64_observable_gauge(names::CIRCUIT_STATE).with_unit("1");
    let circuit = circuit.with_description("1 while nothing is fetched because every job fails.");
    let observe = move |observer: &dyn AsyncInstrument<u64>| {
        for cells in storages.all() {
            cells.flush(&attempts, &in_flight);
            for (queue, is_open) in cells.circuits() {
                observer.observe(u64::from(is_open), &queue);
            }
        }
    };
    circuit.with_callback(observe).build()
}

fn counter(meter: &Meter, (name, unit, about): About) -> Counter<u64> {
    meter.u64_counter(name).with_unit(unit).with_description(about).build()
}
