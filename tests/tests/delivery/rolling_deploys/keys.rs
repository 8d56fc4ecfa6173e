//! A codec that cannot decode or encode now, because its key is installed later or in other processes only.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jobqueue::codec::{Codec, CodecError, Json};
use jobqueue::{JobError, QueueMessage, Reason, Storage, Worker};
use jobqueue_tests::jobs::{after, in_memory, worker};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// JSON behind a key. The process has the key for one of its two types.
struct Locked<const LATE: bool>;

static LATE_KEY: AtomicBool = AtomicBool::new(false);

impl<const LATE: bool> Codec for Locked<LATE> {
    const CONTENT_TYPE: &'static str = "application/x-locked";

    fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError> {
        Json::encode(value)
    }

    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
        if LATE && LATE_KEY.load(Ordering::Relaxed) {
            return Json::decode(bytes);
        }
        Err(CodecError::new("key 2 is not installed").retryable())
    }
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "letters", kind = "letter", codec = Locked<true>)]
struct Letter(u32);

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "letters", kind = "letter", codec = Locked<false>)]
struct LetterWithoutKey(u32);

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "letters", kind = "parcel")]
struct Parcel(u32);

fn reader<M: QueueMessage>(storage: &Storage) -> Worker {
    worker(storage).handle(|_: M| async { Ok::<(), JobError>(()) }).build().unwrap()
}

// round 30, newcomer b
#[tokio::test(start_paused = true)]
async fn payload_waits_for_the_key_of_its_codec() {
    let storage = in_memory();
    let queue = storage.queue::<Letter>().await.unwrap();
    let _ = queue.send(&Letter(1)).await.unwrap();
    let report = reader::<Letter>(&storage).run_until(after(600)).await.unwrap();
    assert_eq!((report.completed, report.dead_lettered), (0, 0), "{report:?}");
    assert!(report.released > 10, "{report:?}");
    // A program that receives by hand leaves it to the workers.
    assert!(queue.receive(Duration::from_secs(60)).await.unwrap().is_none());
    LATE_KEY.store(true, Ordering::Relaxed);
    let report = reader::<Letter>(&storage).run_until(after(60)).await.unwrap();
    assert_eq!((report.completed, report.dead_lettered), (1, 0), "{report:?}");
}

// round 30, newcomer b
#[tokio::test(start_paused = true)]
async fn payload_without_a_key_is_dead_lettered_after_a_day() {
    let storage = in_memory();
    let queue = storage.queue::<LetterWithoutKey>().await.unwrap();
    let _ = queue.send(&LetterWithoutKey(1)).await.unwrap();
    let letters = queue.dead_letters().unwrap();
    let _ = reader::<LetterWithoutKey>(&storage).run_until(after(86_400 - 60)).await.unwrap();
    assert_eq!(letters.list().await.unwrap().letters.len(), 0);
    let _ = reader::<LetterWithoutKey>(&storage).run_until(after(600)).await.unwrap();
    let letter = letters.list().await.unwrap().letters.remove(0);
    assert_eq!((letter.reason, letter.attempts), (Reason::DECODE_ERROR, 0));
    assert!(letter.error.is_some_and(|error| error.contains("key 2 is not installed")));
}

// review of round 31, c 13: each of the two workers began the wait anew.
#[tokio::test(start_paused = true)]
async fn wait_continues_between_workers_that_lack_the_kind_and_the_key() {
    let storage = in_memory();
    let queue = storage.queue::<LetterWithoutKey>().await.unwrap();
    let _ = queue.send(&LetterWithoutKey(1)).await.unwrap();
    for _ in 0..25 {
        let _ = reader::<LetterWithoutKey>(&storage).run_until(after(1_800)).await.unwrap();
        let _ = reader::<Parcel>(&storage).run_until(after(1_800)).await.unwrap();
    }
    let letters = queue.dead_letters().unwrap();
    assert_eq!(letters.list().await.unwrap().letters.len(), 1);
}

/// JSON that is written with a key, which the process has from then on.
struct Sealing;

static SEALING_KEY: AtomicBool = AtomicBool::new(false);

impl Codec for Sealing {
    const CONTENT_TYPE: &'static str = "application/x-sealed";

    fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError> {
        if SEALING_KEY.load(Ordering::Relaxed) {
            return Json::encode(value);
        }
        Err(CodecError::new("key 3 is not installed").retryable())
    }

    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
        Json::decode(bytes)
    }
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "notes", kind = "note", codec = Sealing)]
struct Note(u32);

// newcomers 33
#[tokio::test(start_paused = true)]
async fn send_of_a_handler_that_lacks_a_key_costs_no_attempt() {
    let storage = in_memory();
    let (parcels, notes) = (storage.queue::<Parcel>().await.unwrap(), storage.queue::<Note>().await.unwrap());
    for number in [1, 2] {
        let _ = parcels.send(&Parcel(number)).await.unwrap();
    }
    let sealer = || {
        let notes = notes.clone();
        let seal = move |Parcel(number): Parcel| {
            let notes = notes.clone();
            async move {
                if number == 1 {
                    notes.send(&Note(number)).await?;
                } else {
                    let _ = notes.send_all([Note(number)]).await?;
                }
                Ok::<(), JobError>(())
            }
        };
        worker(&storage).handle(seal).build().unwrap()
    };
    let error = notes.send(&Note(0)).await.unwrap_err();
    assert!(error.is_rejected() && error.is_retryable(), "{error:?}");
    let report = sealer().run_until(after(600)).await.unwrap();
    assert_eq!((report.completed, report.retried, report.dead_lettered), (0, 0, 0), "{report:?}");
    assert!(report.released > 10, "{report:?}");
    SEALING_KEY.store(true, Ordering::Relaxed);
    let report = sealer().run_until(after(60)).await.unwrap();
    assert_eq!((report.completed, report.dead_lettered), (2, 0), "{report:?}");
    assert_eq!(notes.approximate_len().await.unwrap(), 2);
}
