//! Writes a snapshot in the text format of OpenMetrics.

use std::collections::BTreeSet;
use std::fmt::Error;
use std::sync::Arc;

use jobqueue_admin::HISTOGRAM_BOUNDS;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::list::{self, Kind, Metric};
use crate::scale::Target;
use crate::snapshot::{KindTotals, QueueFigures, RefreshStats, Snapshot};

/// Returns the text of all metrics. Without a snapshot, the text has only the metrics about scrapes.
pub(super) fn text(snapshot: Option<Arc<Snapshot>>, stats: &RefreshStats) -> Result<String, Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Exposition { snapshot, stats: stats.clone() }));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Exposition {
    snapshot: Option<Arc<Snapshot>>,
    stats: RefreshStats,
}

impl Collector for Exposition {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut writer = Writer(encoder);
        if let Some(snapshot) = &self.snapshot {
            queues(&mut writer, snapshot)?;
            workers(&mut writer, snapshot)?;
            totals(&mut writer, snapshot)?;
        }
        self.scrape(&mut writer)
    }
}

impl Exposition {
    fn scrape(&self, writer: &mut Writer<'_>) -> Result<(), Error> {
        let stats = &self.stats;
        writer.gauge(list::SCRAPE_SUCCESS, f64::from(u8::from(self.snapshot.is_some())))?;
        writer.gauge(list::SCRAPE_DURATION, stats.last_duration.as_secs_f64())?;
        if let Some(snapshot) = &self.snapshot {
            writer.gauge(list::SCRAPE_AGE, snapshot.taken.elapsed().as_secs_f64())?;
        }
        let refreshes = [(["succeeded"], stats.succeeded), (["failed"], stats.failed)];
        writer.family(list::REFRESHES, refreshes, |metric, count| {
            metric.encode_counter::<NoLabelSet, u64, f64>(&count, None)
        })?;
        writer.gauges(list::BUILD, [([env!("CARGO_PKG_VERSION")], 1.0)])
    }
}

type Figure<T, N> = fn(&T) -> N;

fn queues(writer: &mut Writer<'_>, snapshot: &Snapshot) -> Result<(), Error> {
    let flag = |is: bool| if is { 1.0 } else { 0.0 };
    let figures: [(Metric, Figure<QueueFigures, Option<f64>>); 15] = [
        (list::LENGTH, |queue| Some(queue.length as f64)),
        (list::WAITING, |queue| Some(queue.waiting as f64)),
        (list::IN_FLIGHT, |queue| Some(queue.in_flight? as f64)),
        (list::PAUSED, |queue| Some(f64::from(u8::from(queue.paused)))),
        (list::WORKERS, |queue| Some(queue.workers.as_ref()?.workers as f64)),
        (list::SLOTS, |queue| Some(queue.workers.as_ref()?.slots as f64)),
        (list::READY, |queue| Some(queue.workers.as_ref()?.ready_workers as f64)),
        (list::CIRCUITS, |queue| Some(queue.workers.as_ref()?.circuits_open as f64)),
        (list::OLDEST, |queue| queue.age_seconds),
        (list::DELAYED, |queue| Some(queue.states?.delayed as f64)),
        (list::BACKING_OFF, |queue| Some(queue.states?.backing_off as f64)),
        (list::OLDEST_BACKING_OFF, |queue| queue.backing_off_seconds),
        (list::HELD_UP, |queue| queue.held_up.map(|held_up| f64::from(u8::from(held_up)))),
        (list::OLDEST_HELD_UP, |queue| queue.held_up_seconds),
        (list::DEAD, |queue| Some(queue.dead? as f64)),
    ];
    for (metric, value) in figures {
        let values =
            snapshot.queues.iter().filter_map(|(name, queue)| Some(([name.as_str()], value(queue)?)));
        writer.gauges(metric, values)?;
    }
    let target = Target::new();
    let desired = |name: &String| target.desired(snapshot, name).map(|desired| desired.by_slots);
    let desired = snapshot.queues.keys().filter_map(|name| Some(([name.as_str()], desired(name)?)));
    writer.gauges(list::DESIRED, desired)?;
    // A queue whose dead letters cannot be counted is in both maps.
    let names: BTreeSet<&String> = snapshot.queues.keys().chain(snapshot.unreadable.keys()).collect();
    let readable =
        names.into_iter().map(|name| ([name.as_str()], flag(!snapshot.unreadable.contains_key(name))));
    writer.gauges(list::READABLE, readable)
}

fn workers(writer: &mut Writer<'_>, snapshot: &Snapshot) -> Result<(), Error> {
    writer.gauge(list::RECORDS, f64::from(u8::from(snapshot.workers.is_ok())))?;
    let Ok(workers) = &snapshot.workers else { return Ok(()) };
    let count = |is: fn(bool, bool) -> bool| {
        let recent = workers.iter().filter(|worker| worker.is_recent());
        recent.filter(|worker| is(worker.stale, worker.record.draining)).count() as f64
    };
    let states = [
        (["running"], count(|stale, draining| !stale && !draining)),
        (["draining"], count(|stale, draining| !stale && draining)),
        (["stale"], count(|stale, _| stale)),
    ];
    writer.gauges(list::PRESENT, states)
}

fn totals(writer: &mut Writer<'_>, snapshot: &Snapshot) -> Result<(), Error> {
    let outcomes: [(&str, Figure<KindTotals, u64>); 6] = [
        ("completed", |totals| totals.completed),
        ("retried", |totals| totals.retried),
        // A cancelled job is dead-lettered without a failed attempt.
        ("dead_lettered", |totals| totals.dead_lettered.saturating_sub(totals.cancelled)),
        ("cancelled", |totals| totals.cancelled),
        ("lease_lost", |totals| totals.lease_lost),
        ("other", |totals| totals.other.saturating_sub(totals.lease_lost)),
    ];
    let deliveries = snapshot.totals.iter().flat_map(|(queue, kind, totals)| {
        outcomes.into_iter().map(move |(name, count)| ([queue, kind, name], count(totals)))
    });
    writer.family(list::DELIVERIES, deliveries, |metric, count| {
        metric.encode_counter::<NoLabelSet, u64, f64>(&count, None)
    })?;
    let times = snapshot.totals.iter().map(|(queue, kind, totals)| ([queue, kind], totals));
    writer.family(list::RUN_TIME, times, |metric, totals| {
        let bounds = HISTOGRAM_BOUNDS.into_iter().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(totals.run_times).collect();
        let count = totals.run_times.iter().sum();
        metric.encode_histogram::<NoLabelSet>(totals.run_seconds, count, &buckets, None)
    })
}

struct Writer<'a>(DescriptorEncoder<'a>);

impl Writer<'_> {
    fn gauge(&mut self, metric: Metric, value: f64) -> Result<(), Error> {
        self.gauges(metric, [([], value)])
    }

    fn gauges<'l, const N: usize>(
        &mut self,
        metric: Metric,
        values: impl IntoIterator<Item = ([&'l str; N], f64)>,
    ) -> Result<(), Error> {
        self.family(metric, values, |metric, value| metric.encode_gauge(&value))
    }

    /// Writes a metric: its help, and one value for each set of labels.
    fn family<'l, T, const N: usize>(
        &mut self,
        metric: Metric,
        values: impl IntoIterator<Item = ([&'l str; N], T)>,
        write: impl Fn(&mut MetricEncoder<'_>, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let kind = match metric.kind {
            Kind::Gauge => MetricType::Gauge,
            Kind::Counter => MetricType::Counter,
            Kind::Histogram => MetricType::Histogram,
        };
        let unit = metric.unit.map(|unit| Unit::Other(unit.to_owned()));
        let mut family = self.0.encode_descriptor(metric.name, metric.help, unit.as_ref(), kind)?;
        for (labels, value) in values {
            if N == 0 {
                write(&mut family, value)?;
                continue;
            }
            let labels: Vec<(&str, &str)> = metric.labels.iter().copied().zip(labels).collect();
            write(&mut family.encode_family(&labels)?, value)?;
        }
        Ok(())
    }
}
