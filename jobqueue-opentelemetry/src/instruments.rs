//! The instruments of the metrics.

use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter, UpDownCounter};

use crate::conventions as names;

#[derive(Debug)]
pub(crate) struct Instruments {
    pub(crate) operation_duration: Histogram<f64>,
    pub(crate) sent: Counter<u64>,
    pub(crate) consumed: Counter<u64>,
    pub(crate) process_duration: Histogram<f64>,
    pub(crate) in_flight: UpDownCounter<i64>,
    pub(crate) wait: Histogram<f64>,
    pub(crate) attempts: Counter<u64>,
    pub(crate) dead_letters: Counter<u64>,
    pub(crate) lost: Counter<u64>,
    pub(crate) renewals: Counter<u64>,
    pub(crate) circuit: Gauge<u64>,
    pub(crate) transactions: Counter<u64>,
    pub(crate) throttled: Counter<u64>,
}

/// Name, unit and description of an instrument.
type About = (&'static str, &'static str, &'static str);

// The conventions describe theirs in these words.
const SENT: About =
    (names::SENT_MESSAGES, "{message}", "Number of messages producer attempted to send to the broker.");
const CONSUMED: About =
    (names::CONSUMED_MESSAGES, "{message}", "Number of messages that were delivered to the application.");
const ATTEMPTS: About = (names::JOB_ATTEMPTS, "{attempt}", "Number of deliveries that ended, by outcome.");
const DEAD_LETTERS: About = (names::JOB_DEAD_LETTERS, "{message}", "Number of dead letters stored.");
const LOST: About = (names::LEASE_LOST, "{lease}", "Number of leases that were lost.");
const RENEWALS: About = (names::LEASE_RENEWALS, "{renewal}", "Number of renewals of leases, by outcome.");
const TRANSACTIONS: About =
    (names::STORAGE_TRANSACTIONS, "{request}", "Number of requests to the storage, as it bills them.");
const THROTTLED: About =
    (names::STORAGE_THROTTLED, "{answer}", "Number of answers by which the storage asked to slow down.");

impl Instruments {
    pub(crate) fn new(meter: &Meter) -> Self {
        let seconds = |name: &'static str, boundaries: &[f64], about: &'static str| {
            let histogram = meter.f64_histogram(name).with_unit("s").with_boundaries(boundaries.to_vec());
            histogram.with_description(about).build()
        };
        let operation = "Duration of messaging operation initiated by a producer or consumer client.";
        let wait = "Time from the insertion of a message until its first attempt.";
        let in_flight = meter.i64_up_down_counter(names::QUEUE_IN_FLIGHT).with_unit("{job}");
        let circuit = meter.u64_gauge(names::CIRCUIT_STATE).with_unit("1");
        Self {
            operation_duration: seconds(names::OPERATION_DURATION, names::DURATIONS, operation),
            sent: counter(meter, SENT),
            consumed: counter(meter, CONSUMED),
            process_duration: seconds(
                names::PROCESS_DURATION,
                names::DURATIONS,
                "Duration of processing operation.",
            ),
            in_flight: in_flight.with_description("Number of handlers that run in this process.").build(),
            wait: seconds(names::JOB_WAIT, names::WAITS, wait),
            attempts: counter(meter, ATTEMPTS),
            dead_letters: counter(meter, DEAD_LETTERS),
            lost: counter(meter, LOST),
            renewals: counter(meter, RENEWALS),
            circuit: circuit.with_description("1 while nothing is fetched because every job fails.").build(),
            transactions: counter(meter, TRANSACTIONS),
            throttled: counter(meter, THROTTLED),
        }
    }
}

fn counter(meter: &Meter, (name, unit, about): About) -> Counter<u64> {
    meter.u64_counter(name).with_unit(unit).with_description(about).build()
}
