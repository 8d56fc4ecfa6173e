//! Providers with exporters in memory, and the jobs of the tests.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use jobqueue::{QueueMessage, Runtime, Storage, Worker, WorkerBuilder};
use jobqueue_opentelemetry::{Telemetry, TelemetryBuilder};
use opentelemetry::trace::SpanId;
use opentelemetry::{KeyValue, Value};
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
use opentelemetry_sdk::metrics::{
    Aggregation, InMemoryMetricExporter, Instrument, PeriodicReader, SdkMeterProvider, Stream,
};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "order", poison_threshold = 2, backoff(base = "1s", max = "1s"))]
pub struct Order {
    pub number: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "invoices", kind = "invoice")]
pub struct Invoice {
    pub order: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "letters", kind = "letter")]
pub struct Letter {
    pub order: u32,
}

/// Returns a worker on the virtual time of a test.
pub fn worker(storage: &Storage) -> WorkerBuilder {
    Worker::builder(storage.clone().with_runtime(Runtime::paused()))
}

/// The providers of a test, which keep all spans and metrics.
pub struct Kept {
    pub tracers: SdkTracerProvider,
    pub meters: SdkMeterProvider,
    spans: InMemorySpanExporter,
    metrics: InMemoryMetricExporter,
}

impl Kept {
    pub fn new() -> Self {
        let (spans, metrics) = (InMemorySpanExporter::default(), InMemoryMetricExporter::default());
        let tracers = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build();
        let reader = PeriodicReader::builder(metrics.clone()).build();
        let meters = SdkMeterProvider::builder().with_reader(reader).build();
        Self { tracers, meters, spans, metrics }
    }

    /// Like [`new`](Self::new), with a view that drops a metric.
    pub fn without(dropped: &'static str) -> Self {
        let kept = Self::new();
        let reader = PeriodicReader::builder(kept.metrics.clone()).build();
        let view = move |instrument: &Instrument| {
            let drops = Stream::builder().with_aggregation(Aggregation::Drop);
            (instrument.name() == dropped).then(|| drops.build().unwrap())
        };
        let meters = SdkMeterProvider::builder().with_reader(reader).with_view(view).build();
        Self { meters, ..kept }
    }

    pub fn builder(&self) -> TelemetryBuilder {
        Telemetry::builder().tracer_provider(&self.tracers).meter_provider(&self.meters)
    }

    /// Returns an observed storage in memory.
    pub fn storage(&self) -> Storage {
        self.builder().build().observe(Storage::memory())
    }

    pub fn spans(&self) -> Spans {
        Spans(self.spans.get_finished_spans().unwrap())
    }

    /// Returns the data points of a metric: the attributes, and the value or the count.
    pub fn points(&self, name: &str) -> Vec<(Vec<KeyValue>, f64)> {
        self.all_points()
            .into_iter()
            .filter(|point| point.0 == name)
            .map(|point| (point.1, point.2))
            .collect()
    }

    /// Returns the name, the attributes and the value or count of all data points.
    pub fn all_points(&self) -> Vec<(String, Vec<KeyValue>, f64)> {
        self.metrics.reset();
        self.meters.force_flush().unwrap();
        let mut points = Vec::new();
        for resource in self.metrics.get_finished_metrics().unwrap() {
            for metric in resource.scope_metrics().flat_map(|scope| scope.metrics()) {
                let found = match metric.data() {
                    AggregatedMetrics::F64(data) => values(data, |value| value),
                    AggregatedMetrics::U64(data) => values(data, |value| value as f64),
                    AggregatedMetrics::I64(data) => values(data, |value| value as f64),
                };
                points.extend(found.into_iter().map(|(keys, value)| (metric.name().to_owned(), keys, value)));
            }
        }
        points
    }

    /// Returns the longest duration in a histogram.
    pub fn longest(&self, name: &str) -> f64 {
        self.metrics.reset();
        self.meters.force_flush().unwrap();
        let all = self.metrics.get_finished_metrics().unwrap();
        let metrics =
            all.iter().flat_map(|resource| resource.scope_metrics()).flat_map(|scope| scope.metrics());
        let mut longest = 0.0_f64;
        for metric in metrics.filter(|metric| metric.name() == name) {
            let AggregatedMetrics::F64(MetricData::Histogram(histogram)) = metric.data() else { continue };
            longest = histogram.data_points().filter_map(|point| point.max()).fold(longest, f64::max);
        }
        longest
    }

    /// Returns the name and unit of all metrics.
    pub fn units(&self) -> Vec<(String, String)> {
        self.metrics.reset();
        self.meters.force_flush().unwrap();
        let all = self.metrics.get_finished_metrics().unwrap();
        let metrics =
            all.iter().flat_map(|resource| resource.scope_metrics()).flat_map(|scope| scope.metrics());
        metrics.map(|metric| (metric.name().to_owned(), metric.unit().to_owned())).collect()
    }
}

fn values<T: Copy>(data: &MetricData<T>, number: impl Fn(T) -> f64) -> Vec<(Vec<KeyValue>, f64)> {
    let keys = |attributes: &mut dyn Iterator<Item = &KeyValue>| attributes.cloned().collect::<Vec<_>>();
    match data {
        MetricData::Gauge(gauge) => {
            gauge.data_points().map(|p| (keys(&mut p.attributes()), number(p.value()))).collect()
        }
        MetricData::Sum(sum) => {
            sum.data_points().map(|p| (keys(&mut p.attributes()), number(p.value()))).collect()
        }
        MetricData::Histogram(histogram) => {
            histogram.data_points().map(|p| (keys(&mut p.attributes()), p.count() as f64)).collect()
        }
        MetricData::ExponentialHistogram(_) => Vec::new(),
    }
}

/// Returns the value of an attribute as text.
pub fn value(attributes: &[KeyValue], key: &str) -> Option<String> {
    attributes.iter().find(|pair| pair.key.as_str() == key).map(|pair| match &pair.value {
        Value::String(text) => text.as_str().to_owned(),
        other => other.to_string(),
    })
}

/// Returns the sum of the data points that have all these attributes.
pub fn sum(kept: &Kept, name: &str, wanted: &[(&str, &str)]) -> f64 {
    let fits = |attributes: &[KeyValue]| {
        wanted.iter().all(|(key, is)| value(attributes, key).as_deref() == Some(*is))
    };
    kept.points(name).iter().filter(|(attributes, _)| fits(attributes)).map(|(_, value)| value).sum()
}

/// Finished spans, in the order of their ends.
pub struct Spans(pub Vec<SpanData>);

impl Spans {
    /// Returns all spans of this name.
    pub fn all(&self, name: &str) -> Vec<&SpanData> {
        self.0.iter().filter(|span| span.name == name).collect()
    }

    /// Returns the only span of this name.
    pub fn one(&self, name: &str) -> &SpanData {
        let found = self.all(name);
        assert_eq!(found.len(), 1, "{name} among {:?}", self.names());
        found[0]
    }

    pub fn names(&self) -> Vec<&str> {
        self.0.iter().map(|span| &*span.name).collect()
    }
}

pub fn is_child(child: &SpanData, parent: &SpanData) -> bool {
    child.parent_span_id == parent.span_context.span_id()
        && child.span_context.trace_id() == parent.span_context.trace_id()
}

pub fn is_root(span: &SpanData) -> bool {
    span.parent_span_id == SpanId::INVALID
}

/// Returns the ids of the spans to which a span links.
pub fn linked(span: &SpanData) -> Vec<SpanId> {
    span.links.iter().map(|link| link.span_context.span_id()).collect()
}
