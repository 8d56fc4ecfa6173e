//! Jobs whose payloads are written in another form when their sender repeats itself: after a deploy, by a map
//! without an order, by a codec that encrypts. The identity of a job does not depend on the bytes of its
//! payload.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::codec::{Codec, CodecError, Json};
use jobqueue::{Context, JobError, QueueMessage, SendOptions, Storage};
use jobqueue_tests::jobs::{after, in_memory, worker};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::order::logged;

/// A codec whose output differs each time, as that of a cipher with a random nonce does.
struct Sealed;

static NONCE: AtomicU8 = AtomicU8::new(0);

impl Codec for Sealed {
    const CONTENT_TYPE: &'static str = "application/x-sealed";

    fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError> {
        let mut sealed = vec![NONCE.fetch_add(1, Ordering::Relaxed)];
        sealed.extend(Json::encode(value)?);
        Ok(sealed)
    }

    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
        Json::decode(bytes.get(1..).unwrap_or_default())
    }
}

mod old {
    use super::*;

    #[derive(Serialize, Deserialize, QueueMessage)]
    #[message(queue = "mails", kind = "mail")]
    pub struct Mail {
        #[message(key)]
        pub to: String,
    }
}

/// The type of the next release: renamed, with one more field.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail.send", alias = "mail")]
struct Mail {
    #[message(key)]
    to: String,
    #[serde(default)]
    language: Option<String>,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "secrets", kind = "secret", codec = Sealed)]
struct Secret {
    #[message(key)]
    of: String,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "tables", kind = "table")]
struct Table {
    #[message(key)]
    of: String,
    cells: HashMap<u32, u32>,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "archives", kind = "archive")]
struct Archive {}

const HOUR: Duration = Duration::from_secs(3600);

fn old_mail(to: impl ToString) -> old::Mail {
    old::Mail { to: to.to_string() }
}

fn mail(to: impl ToString) -> Mail {
    Mail { to: to.to_string(), language: None }
}

fn secret(of: impl ToString) -> Secret {
    Secret { of: of.to_string() }
}

/// Runs mails, secrets and archives until all have ended. Returns what ran, sorted.
async fn run(storage: &Storage) -> Vec<String> {
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let (mails, secrets, archives) = (Arc::clone(&log), Arc::clone(&log), Arc::clone(&log));
    let mail = move |mail: Mail| {
        mails.lock().unwrap().push(format!("mail {}", mail.to));
        async { Ok::<_, JobError>(()) }
    };
    let secret = move |secret: Secret| {
        secrets.lock().unwrap().push(format!("secret {}", secret.of));
        async { Ok::<_, JobError>(()) }
    };
    let archive = move |_: Archive, _: Context| {
        archives.lock().unwrap().push("archive".to_owned());
        async { Ok::<_, JobError>(()) }
    };
    let worker = worker(storage).handle(mail).handle(secret).handle(archive).build().unwrap();
    let report = worker.run_until(after(600)).await.unwrap();
    assert_eq!(report.dead_lettered, 0);
    let mut ran = log.lock().unwrap().clone();
    ran.sort();
    ran
}

#[tokio::test(start_paused = true)]
async fn batch_goes_on_after_a_deploy_that_changed_its_children() {
    let storage = in_memory();
    let mut interrupted = storage.batch("mailing").await.unwrap();
    interrupted.send_all((0..3).map(old_mail)).await.unwrap();
    drop(interrupted);
    let mut batch = storage.batch("mailing").await.unwrap();
    batch.send_all((0..5).map(mail)).await.unwrap();
    batch.then(&Archive {}).await.unwrap();
    assert_eq!(run(&storage).await, ["archive", "mail 0", "mail 1", "mail 2", "mail 3", "mail 4"]);
}

#[tokio::test(start_paused = true)]
async fn batch_of_encrypted_children_can_be_started_again() {
    let storage = in_memory();
    let mut interrupted = storage.batch("secrets").await.unwrap();
    interrupted.send_all((0..2).map(secret)).await.unwrap();
    drop(interrupted);
    let mut batch = storage.batch("secrets").await.unwrap();
    batch.send_all((0..3).map(secret)).await.unwrap();
    batch.then(&Archive {}).await.unwrap();
    assert_eq!(run(&storage).await, ["archive", "secret 0", "secret 1", "secret 2"]);
}

#[tokio::test(start_paused = true)]
async fn children_of_other_keys_are_refused_although_they_are_encrypted() {
    let storage = in_memory();
    storage.batch("secrets").await.unwrap().send_all((0..2).map(secret)).await.unwrap();
    let error = storage.batch("secrets").await.unwrap().send_all((1..3).map(secret)).await.unwrap_err();
    assert_eq!(error.kind(), jobqueue::ErrorKind::Conflict, "{error}");
}

#[tokio::test(start_paused = true)]
async fn repeated_send_in_order_of_an_encrypted_job_finds_it_done() {
    let storage = logged();
    let queue = storage.queue::<Secret>().await.unwrap();
    let again = || SendOptions::new().in_order().id("first");
    assert!(!queue.send(&secret("a")).with(again()).await.unwrap().was_done());
    assert_eq!(run(&storage).await, ["secret a"]);
    assert!(queue.send(&secret("a")).with(again()).await.unwrap().was_done());
    assert!(queue.is_empty().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn repeated_send_in_order_of_another_release_finds_the_job_done() {
    let storage = logged();
    let again = || SendOptions::new().in_order().id("first").source("/shop");
    storage.queue::<old::Mail>().await.unwrap().send(&old_mail("a")).with(again()).await.unwrap();
    assert_eq!(run(&storage).await, ["mail a"]);
    let sent = storage.queue::<Mail>().await.unwrap().send(&mail("a")).with(again()).await.unwrap();
    assert!(sent.was_done());
}

#[tokio::test(start_paused = true)]
async fn two_messages_of_one_job_in_order_run_once_whatever_order_a_map_has() {
    let storage = logged();
    let queue = storage.queue::<Table>().await.unwrap();
    // Each map has its own order: of so many, two agree practically never.
    let table = || Table { of: "a".into(), cells: (0..50).map(|cell| (cell, cell)).collect() };
    for _ in 0..2 {
        queue.send(&table()).with(SendOptions::new().in_order().id("first")).await.unwrap();
    }
    assert_eq!(queue.approximate_len().await.unwrap(), 2);
    let runs: Arc<Mutex<u32>> = Arc::default();
    let counter = Arc::clone(&runs);
    let handler = move |_: Table| {
        *counter.lock().unwrap() += 1;
        async { Ok::<_, JobError>(()) }
    };
    let worker = worker(&storage).handle(handler).build().unwrap();
    let _ = worker.run_until(after(600)).await.unwrap();
    assert_eq!(*runs.lock().unwrap(), 1);
    assert!(queue.is_empty().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn window_of_unique_work_survives_a_renamed_kind() {
    let storage = in_memory();
    let (old, new) = (storage.queue::<old::Mail>().await.unwrap(), storage.queue::<Mail>().await.unwrap());
    let first = old.send(&old_mail("a")).unique_for(HOUR).await.unwrap();
    let second = new.send(&mail("a")).unique_for(HOUR).await.unwrap();
    assert!(!second.is_sent());
    assert_eq!(second.id(), first.id());
    assert!(new.cancel_unique("a").await.unwrap());
    // And back: old senders still run while the new release starts.
    assert!(new.send(&mail("a")).unique_for(HOUR).await.unwrap().is_sent());
    assert!(!old.send(&old_mail("a")).unique_for(HOUR).await.unwrap().is_sent());
}
