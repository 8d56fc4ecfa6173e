//! Lesson 2: rules on fields.
//!
//! Teaches that a message is checked before it is sent, and that all mistakes are reported at once, each with
//! its path. Prints
//!
//! ```text
//! email: …
//! guests: …
//! rooms[0].beds: …
//! nothing was sent: true
//! ```

#![allow(clippy::print_stdout, reason = "a program for people to look at")]

use jobqueue::{QueueMessage, Validate};
use jobqueue_examples::{Failure, lesson_storage};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "bookings", kind = "hotel.booking")]
struct Booking {
    #[message(email)]
    email: String,
    #[message(range(1..=10))]
    guests: u8,
    #[message(length(1..=5), nested)]
    rooms: Vec<Room>,
}

#[derive(Serialize, Deserialize, Validate)]
struct Room {
    #[message(range(1..=4))]
    beds: u8,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let storage = lesson_storage("validation").await?;
    let bookings = storage.queue::<Booking>().await?;
    bookings.clear().await?;
    let wrong = Booking { email: "nobody".into(), guests: 0, rooms: vec![Room { beds: 9 }] };
    if let Err(violations) = wrong.validate() {
        for violation in violations.iter() {
            println!("{violation}");
        }
    }
    // Sending validates the message too.
    let refused = bookings.send(&wrong).await.is_err_and(|error| error.is_rejected());
    println!("nothing was sent: {}", refused && bookings.is_empty().await?);
    Ok(())
}
