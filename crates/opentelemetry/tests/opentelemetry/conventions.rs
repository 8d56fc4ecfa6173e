//! Compares names, kinds and units with the model of OpenTelemetry's semantic conventions 1.44.0. The files
//! in `conventions/` are copied from it unchanged (Apache License 2.0).

use std::collections::{BTreeMap, BTreeSet};

use jobqueue::JobError;
use opentelemetry::trace::SpanKind;

use crate::support::{Kept, Order, value, worker};

const REGISTRY: &str = include_str!("conventions/registry.yaml");
const ERRORS: &str = include_str!("conventions/error.yaml");
const SPANS: &str = include_str!("conventions/spans.yaml");
const METRICS: &str = include_str!("conventions/metrics.yaml");

/// Returns the blocks of a model that begin with this line, by the value on the line.
fn blocks<'m>(model: &'m str, begin: &str) -> BTreeMap<&'m str, &'m str> {
    let starts: Vec<usize> = model.match_indices(begin).map(|(at, _)| at).collect();
    let ends = starts.iter().skip(1).copied().chain([model.len()]);
    let block = |(start, end): (&usize, usize)| {
        let text = &model[start + begin.len()..end];
        (text.lines().next().unwrap().trim(), text)
    };
    starts.iter().zip(ends).map(block).collect()
}

fn field<'m>(block: &'m str, name: &str) -> &'m str {
    let line = block.lines().find_map(|line| line.trim().strip_prefix(name)).unwrap_or_default();
    line.trim_start_matches(':').trim().trim_matches('"')
}

/// Returns the attributes that a span of this type may have, including the attributes of its groups.
fn attributes_of(span: &str) -> BTreeSet<String> {
    let (groups, _) = SPANS.split_once("\nspans:\n").unwrap();
    let groups = blocks(groups, "\n  - id: ");
    let (spans, mut names) = (blocks(SPANS, "\n  - type: "), BTreeSet::new());
    let mut open = vec![spans[span]];
    while let Some(block) = open.pop() {
        for line in block.lines() {
            let line = line.trim().trim_start_matches("- ");
            if let Some(name) = line.strip_prefix("ref: ") {
                names.insert(name.to_owned());
            } else if let Some(group) = line.strip_prefix("ref_group: ") {
                open.push(groups[group]);
            }
        }
    }
    names
}

async fn run_jobs() -> Kept {
    let kept = Kept::new();
    let storage = kept.storage();
    let orders = storage.queue::<Order>().await.unwrap();
    orders.send(&Order { number: 0 }).await.unwrap();
    for sent in orders.send_all([Order { number: 1 }, Order { number: 2 }]).await.unwrap() {
        sent.unwrap();
    }
    let handler = |order: Order| async move {
        if order.number == 0 { Err(JobError::dead_letter("no")) } else { Ok(()) }
    };
    drop(worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap());
    kept
}

#[tokio::test(start_paused = true)]
async fn spans_are_in_the_model() {
    let kept = run_jobs().await;
    let spans = kept.spans();
    let model = blocks(SPANS, "\n  - type: ");
    let mut met = BTreeSet::new();
    for span in &spans.0 {
        let operation = value(&span.attributes, "messaging.operation.type").unwrap();
        let kind = match span.span_kind {
            SpanKind::Producer => "producer",
            SpanKind::Consumer => "consumer",
            _ => "client",
        };
        let name = format!("messaging.{operation}.{kind}");
        let block = model.get(&*name).unwrap_or_else(|| panic!("{name} is not in the model"));
        assert_eq!(field(block, "kind"), kind);
        assert_eq!(span.name, format!("{operation} orders"));
        let allowed = attributes_of(&name);
        for attribute in &span.attributes {
            let key = attribute.key.as_str();
            assert!(allowed.contains(key) || key.starts_with("jobqueue."), "{name}: {key}");
        }
        for required in ["messaging.system", "messaging.operation.name", "messaging.destination.name"] {
            assert!(value(&span.attributes, required).is_some(), "{name}: {required}");
        }
        met.insert(name);
    }
    let all: BTreeSet<String> = model.keys().map(|name| (*name).to_owned()).collect();
    assert_eq!(met, all, "every span of the model is made");
}

#[tokio::test(start_paused = true)]
async fn attributes_are_registered_with_their_types() {
    let kept = run_jobs().await;
    let registered = blocks(REGISTRY, "\n      - id: ");
    for span in kept.spans().0 {
        for attribute in span.attributes {
            let key = attribute.key.as_str();
            if key.starts_with("jobqueue.") {
                continue;
            }
            if key == "error.type" {
                assert!(ERRORS.contains("- id: error.type"));
                continue;
            }
            let block = registered.get(key).unwrap_or_else(|| panic!("{key} is not registered"));
            let is_int = field(block, "type") == "int";
            assert_eq!(matches!(attribute.value, opentelemetry::Value::I64(_)), is_int, "{key}");
        }
    }
    assert!(REGISTRY.contains("- id: servicebus\n"), "the system of Service Bus has this name");
    for operation in ["create", "send", "receive", "process", "settle"] {
        assert!(
            REGISTRY.contains(&format!("value: \"{operation}\""))
                || REGISTRY.contains(&format!("value: '{operation}'")),
            "{operation}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_are_in_the_model() {
    let kept = run_jobs().await;
    let model = blocks(METRICS, "\n    metric_name: ");
    let found: BTreeMap<String, String> = kept.units().into_iter().collect();
    for (name, block) in &model {
        let unit = found.get(*name).unwrap_or_else(|| panic!("{name} is not recorded"));
        assert_eq!(unit, field(block, "unit"), "{name}");
    }
    for name in found.keys().filter(|name| name.starts_with("messaging.")) {
        assert!(model.contains_key(&**name), "{name} is not in the model");
    }
}
