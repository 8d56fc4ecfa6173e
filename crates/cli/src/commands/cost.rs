//! The requests that a storage gets in a day, and their price on Azure.

use clap::Args;
use jiff::Timestamp;
use jobqueue_admin::{AzurePrices, WorkerOverview, WorkerRecord};

use crate::text::count;

const SECONDS_PER_DAY: f64 = 86_400.0;
/// The seconds between two requests of an idle worker to a queue, unless configured otherwise.
const IDLE_POLL_SECONDS: f64 = 5.0;
/// The seconds between two reads of a queue's settings.
const SETTINGS_READ_SECONDS: f64 = 30.0;
/// The requests of a short job: a put, a delete, and its share of a get that returns 32 messages.
const REQUESTS_PER_JOB: f64 = 2.0 + 1.0 / 32.0;

/// Prices for the estimate of a day's cost.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Prices {
    /// The price of 10,000 requests to queues on Azure, for the estimate of the daily cost
    #[arg(long, value_name = "USD", default_value_t = AzurePrices::DEFAULT.queue)]
    queue_price: f64,
    /// The price of 10,000 writes of blobs on Azure, for the estimate of the daily cost
    #[arg(long, value_name = "USD", default_value_t = AzurePrices::DEFAULT.write)]
    write_price: f64,
}

/// The requests of a day.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Cost {
    /// Requests to queues while no job runs: polls, and reads of settings.
    idle: f64,
    /// Requests to queues for jobs, at the mean rate of the present workers since their start.
    jobs: f64,
    /// Writes of the workers' records.
    records: f64,
}

impl Cost {
    pub(super) fn of(workers: &[WorkerOverview]) -> Self {
        let mut cost = Self::default();
        for record in workers.iter().filter(|worker| !worker.stale).map(|worker| &worker.record) {
            cost.records += SECONDS_PER_DAY / record.interval_seconds.max(0.001);
            cost.idle += record.queues.len() as f64
                * (SECONDS_PER_DAY / IDLE_POLL_SECONDS + SECONDS_PER_DAY / SETTINGS_READ_SECONDS);
            cost.jobs += jobs_a_day(record) * REQUESTS_PER_JOB;
        }
        cost
    }

    pub(super) fn text(&self, Prices { queue_price, write_price }: Prices) -> String {
        let requests = format!(
            "about {} requests to queues and {} writes of records a day when idle, and {} for jobs at the \
             workers' current rate",
            count(self.idle),
            count(self.records),
            count(self.jobs)
        );
        let prices = AzurePrices { queue: queue_price, write: write_price };
        let price = prices.of(self.idle + self.jobs, self.records);
        format!(
            "{requests}: an estimate of {price:.2} USD a day on Azure, if 10,000 requests to queues cost \
             {queue_price} USD and 10,000 writes {write_price} (--queue-price, --write-price)"
        )
    }
}

/// Returns the deliveries of a worker in a day, from its counters since its start.
fn jobs_a_day(record: &WorkerRecord) -> f64 {
    let ended =
        record.counters.iter().map(|kind| kind.completed + kind.retried + kind.dead_lettered + kind.other);
    let ended = ended.sum::<u64>() as f64;
    let time = |text: &str| text.parse::<Timestamp>().ok();
    let up = time(&record.started).zip(time(&record.written));
    let seconds = up.map_or(0.0, |(started, written)| written.duration_since(started).as_secs_f64());
    // The rate of the first minute does not predict the rate of a day.
    if seconds < 60.0 { 0.0 } else { ended * SECONDS_PER_DAY / seconds }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICES: Prices = Prices { queue_price: 0.004, write_price: 0.055 };

    #[test]
    fn storage_without_workers_costs_nothing() {
        let text = Cost::of(&[]).text(PRICES);
        assert!(text.starts_with("about 0 requests to queues and 0 writes"), "{text}");
        assert!(text.contains("an estimate of 0.00 USD"), "{text}");
    }

    #[test]
    fn requests_are_added_up_and_priced() {
        let cost = Cost { idle: 1_000_000.0, jobs: 1_500_000.0, records: 11_520.0 };
        let text = cost.text(PRICES);
        assert!(text.contains("about 1,000,000 requests") && text.contains("11,520 writes"), "{text}");
        assert!(text.contains("an estimate of 1.06 USD a day"), "{text}");
        let others = Prices { queue_price: 0.008, write_price: 0.11 };
        assert!(cost.text(others).contains("an estimate of 2.13 USD a day"));
    }
}
