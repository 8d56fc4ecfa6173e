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

impl Instruments {
    pub(crate) fn new(meter: &Meter) -> Self {
        let counter = |name: &'static str, unit: &'static str, about: &'static str| {
            meter.u64_counter(name).with_unit(unit).with_description(about).build()
        };
        let seconds = |name: &'static str, boundaries: &[f64], about: &'static str| {
            let histogram = meter.f64_histogram(name).with_unit("s").with_boundaries(boundaries.to_vec());
            histogram.with_description(about).build()
        };
        Self {
            operation_duration: seconds(
                names::OPERATION_DURATION,
                names::DURATIONS,
                "Duration of messaging operation initiated by a producer or consumer client.",
            ),
            sent: counter(
                names::SENT_MESSAGES,
                "{message}",
                "Number of messages producer attempted to send to the broker.",
            ),
            consumed: counter(
                names::CONSUMED_MESSAGES,
                "{message}",
                "Number of messages that were delivered to the application.",
            ),
            process_duration: seconds(
                names::PROCESS_DURATION,
                names::DURATIONS,
                "Duration of processing operation.",
            ),
            in_flight: meter
                .i64_up_down_counter(names::QUEUE_IN_FLIGHT)
                .with_unit("{job}")
                .with_description("Number of handlers that run in this process.")
                .build(),
            wait: seconds(
                names::JOB_WAIT,
                names::WAITS,
                "Time from the insertion of a message until its first attempt.",
            ),
            attempts: counter(
                names::JOB_ATTEMPTS,
                "{attempt}",
                "Number of deliveries that ended, by outcome.",
            ),
            dead_letters: counter(names::JOB_DEAD_LETTERS, "{message}", "Number of dead letters stored."),
            lost: counter(names::LEASE_LOST, "{lease}", "Number of leases that were lost."),
            renewals: counter(
                names::LEASE_RENEWALS,
                "{renewal}",
                "Number of renewals of leases, by outcome.",
            ),
            circuit: meter
                .u64_gauge(names::CIRCUIT_STATE)
                .with_unit("1")
                .with_description("1 while the worker fetches nothing because every job fails, else 0.")
                .build(),
            transactions: counter(
                names::STORAGE_TRANSACTIONS,
                "{request}",
                "Number of requests to the storage, as it bills them.",
            ),
            throttled: counter(
                names::STORAGE_THROTTLED,
                "{answer}",
                "Number of answers by which the storage asked to slow down.",
            ),
        }
    }
}
