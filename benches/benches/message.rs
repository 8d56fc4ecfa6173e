//! Encode and validate, decode and validate, against bare serde_json of an equal envelope and payload.

#![allow(missing_docs, reason = "criterion's macros make items without")]
#![allow(clippy::unwrap_used, reason = "a benchmark that fails ends")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use futures_util::FutureExt;
use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;
use jobqueue::__internals::{read_text, text_of};
use jobqueue::{Queue, QueueMessage, Storage};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

const MILLISECONDS: DateTimePrinter = DateTimePrinter::new().precision(Some(3));

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "bench.thumbnail")]
struct Thumbnail {
    number: u64,
    #[message(range(1..=4096))]
    size: u32,
    #[message(length(1..=256))]
    name: String,
    #[message(length(1..=1024))]
    url: String,
    #[message(length(0..=256))]
    note: String,
}

/// The same attributes as an event of ours, owned, because a program that passes the event on needs them so.
#[derive(Serialize, Deserialize)]
struct Event<T> {
    specversion: String,
    id: String,
    source: String,
    #[serde(rename = "type")]
    kind: String,
    time: String,
    datacontenttype: String,
    schemaversion: u32,
    traceparent: String,
    data: T,
}

fn thumbnail() -> Thumbnail {
    Thumbnail {
        number: 4711,
        size: 256,
        name: "thumbnail of a photo of a holiday".into(),
        url: "https://photos.example.org/albums/2026/summer/IMG_20260714_183012.jpeg".into(),
        note: "square, 256 pixels, sharpened".into(),
    }
}

/// An event with an id, a time and a trace of its own, as each that is sent has.
fn new_event<'a>(like: &Event<Thumbnail>, data: &'a Thumbnail) -> Event<&'a Thumbnail> {
    Event {
        specversion: like.specversion.clone(),
        id: Uuid::now_v7().to_string(),
        source: like.source.clone(),
        kind: like.kind.clone(),
        time: MILLISECONDS.timestamp_to_string(&Timestamp::now()),
        datacontenttype: like.datacontenttype.clone(),
        schemaversion: like.schemaversion,
        traceparent: format!("00-{:032x}-{:016x}-01", rand::random::<u128>(), rand::random::<u64>()),
        data,
    }
}

fn messages(criterion: &mut Criterion) {
    let queue: Queue<Thumbnail> = Storage::memory().queue().now_or_never().unwrap().unwrap();
    let message = thumbnail();
    let text = text_of(&queue, &message).unwrap();
    let event: Event<Thumbnail> = serde_json::from_str(&text).unwrap();

    let mut encode = criterion.benchmark_group("encode");
    encode.bench_function("serde_json", |b| b.iter(|| serde_json::to_string(black_box(&event)).unwrap()));
    encode.bench_function("serde_json, new event", |b| {
        b.iter(|| serde_json::to_string(&new_event(&event, black_box(&message))).unwrap())
    });
    encode.bench_function("jobqueue", |b| b.iter(|| text_of(&queue, black_box(&message)).unwrap()));
    encode.finish();

    let mut decode = criterion.benchmark_group("decode");
    decode.bench_function("serde_json", |b| {
        b.iter(|| serde_json::from_str::<Event<Thumbnail>>(black_box(&text)).unwrap())
    });
    decode.bench_function("serde_json, payload by itself", |b| {
        b.iter(|| {
            let event: Event<&RawValue> = serde_json::from_str(black_box(&text)).unwrap();
            let payload: Thumbnail = serde_json::from_str(event.data.get()).unwrap();
            (event.kind, payload)
        })
    });
    decode.bench_function("jobqueue", |b| {
        b.iter(|| read_text(&queue, black_box(&text)).now_or_never().unwrap().unwrap())
    });
    decode.finish();
}

criterion_group!(benches, messages);
criterion_main!(benches);
