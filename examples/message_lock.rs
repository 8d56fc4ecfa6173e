//! Exclusive processing by hand: the pull API as a lock around a message.
//!
//! A received message is leased. The lease renews itself as long as the delivery lives. It ends when the
//! delivery is completed, released or dropped. Prints
//!
//! ```text
//! worked 7 s on parcel 1 under a lease of 6 s; no other worker got it
//! completed parcel 1
//! dropped parcel 2 without a word: it is back, attempt 1, delivery 2
//! released parcel 2 for later
//! completed parcel 2 with its progress: weighed
//! ```

#![allow(clippy::print_stdout, reason = "a program for people to look at")]

use std::process::ExitCode;
use std::time::Duration;

use jobqueue::{Delivery, Queue, QueueMessage};
use jobqueue_examples::{Failure, end, lesson_storage};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "parcels", kind = "parcel", lease = "6s")]
struct Parcel {
    number: u32,
}

const PATIENCE: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> ExitCode {
    end(run().await)
}

async fn run() -> Result<(), Failure> {
    let storage = lesson_storage("message_lock").await?;
    let parcels = storage.queue::<Parcel>().await?;
    parcels.clear().await?;

    // Longer than the lease: the lock renews itself.
    parcels.send(&Parcel { number: 1 }).await?;
    let delivery = next(&parcels).await?;
    let work = tokio::time::sleep(Duration::from_secs(7));
    tokio::select! {
        () = work => {}
        () = delivery.token().cancelled() => return Err("the lock was lost".into()),
    }
    let others = parcels.receive(Duration::ZERO).await?.is_some();
    assert!(!others, "another has got a locked message");
    println!("worked 7 s on parcel 1 under a lease of 6 s; no other worker got it");
    delivery.complete().await?;
    println!("completed parcel 1");

    // A dropped delivery is abandoned: its message is visible again at once.
    parcels.send(&Parcel { number: 2 }).await?;
    drop(next(&parcels).await?);
    let delivery = next(&parcels).await?;
    let info = delivery.info();
    println!(
        "dropped parcel 2 without a word: it is back, attempt {}, delivery {}",
        info.attempt, info.dequeue_count
    );

    // Progress stays with the message.
    delivery.checkpoint("weighed").await?;
    delivery.release(Duration::from_millis(200)).await?;
    println!("released parcel 2 for later");
    let delivery = next(&parcels).await?;
    let progress: String = delivery.resume().await?.unwrap_or_default();
    let number = delivery.message().number;
    delivery.complete().await?;
    println!("completed parcel {number} with its progress: {progress}");
    Ok(())
}

async fn next(parcels: &Queue<Parcel>) -> Result<Delivery<Parcel>, Failure> {
    parcels.receive(PATIENCE).await?.ok_or_else(|| "no parcel came".into())
}
