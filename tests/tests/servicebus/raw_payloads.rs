//! Payloads of other programs without an event around them.

use std::time::Duration;

use jobqueue::Reason;
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::storage::UpdateMessage;
use serde_json::json;

use super::forged::SEND;
use super::jobs::Work;
use super::{Bench, python};

// Under a new id the handler found none of the effects that it had recorded with `once`.
#[tokio::test]
async fn raw_payload_that_the_service_dead_letters_is_redriven_under_its_id() {
    let bench = Bench::with(json!({ "MaxDeliveryCount": 1 }), &[]);
    python::run(bench.emulator.connection_string(), SEND, &["{}", r#"{"name":"raw"}"#]);
    let queue = bench.storage.queue::<Work>().await.unwrap();
    let leased = bench.get().await.unwrap();
    let id = leased.message.id.as_str();
    bench.update(&leased.message, UpdateMessage::new(Duration::ZERO)).await.unwrap();
    let dead = queue.dead_letters().unwrap();
    let letter = &dead.peek().await.unwrap()[0];
    assert_eq!(letter.id, id);
    assert_eq!(dead.redrive(DeadLetterOptions::new()).await.unwrap().moved, [id]);
    let again = queue.receive(Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(again.message().name, "raw");
    assert_eq!(&*again.info().id, id);
    assert_eq!(&*again.info().source, "/jobqueue/external");
    assert_eq!(&*again.info().kind, "work");
    again.dead_letter(Reason::REJECTED, "no").await.unwrap();
    let letter = &dead.peek().await.unwrap()[0];
    assert_eq!((letter.id.as_str(), letter.past.len()), (id, 1));
}
