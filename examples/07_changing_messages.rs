//! Lesson 7: a message type changes while messages wait and old programs still send.
//!
//! Teaches versions, the conversion from one to the next, aliases of kinds, and what a worker does with a
//! version that it does not know yet. Prints
//!
//! ```text
//! an old worker puts the new message back: 1
//! to ada@example.org: 1 recipients
//! to grace@example.org: 2 recipients
//! ```

#![allow(clippy::print_stdout, reason = "a program for people to look at")]

use std::time::Duration;

use jobqueue::{JobError, QueueMessage, Worker};
use jobqueue_examples::{Failure, lesson_storage};
use serde::{Deserialize, Serialize};

/// The message type of the first release.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail")]
struct MailV1 {
    to: String,
}

/// The message type of this release: another kind name, another form of the payload. Workers of this release
/// read both.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail.send", alias = "mail", version = 2, upgrade_from = MailV1)]
struct Mail {
    recipients: Vec<String>,
}

/// Use `TryFrom` if some old messages cannot be converted; they are dead-lettered then.
impl From<MailV1> for Mail {
    fn from(old: MailV1) -> Self {
        Self { recipients: vec![old.to] }
    }
}

async fn old_handler(_: MailV1) -> Result<(), JobError> {
    Ok(())
}

async fn handler(mail: Mail) -> Result<(), JobError> {
    if let [first, ..] = &mail.recipients[..] {
        println!("to {first}: {} recipients", mail.recipients.len());
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let storage = lesson_storage("changing").await?;
    let mails = storage.queue::<Mail>().await?;
    mails.clear().await?;
    let recipients = ["grace@example.org", "alan@example.org"].map(str::to_owned).to_vec();
    mails.send(&Mail { recipients }).await?;

    // A worker of the first release may receive the message during the deployment. It puts it back for a
    // newer one.
    let old = Worker::builder(storage.clone()).handle(old_handler).build()?;
    println!("an old worker puts the new message back: {}", old.run_until_idle().await?.released);

    // A message of an old program is converted before the handler receives it.
    storage.queue::<MailV1>().await?.send(&MailV1 { to: "ada@example.org".to_owned() }).await?;
    let new = Worker::builder(storage).handle(handler).build()?;
    // Not `run_until_idle`: the message that was put back is visible again after a second.
    let _ = new.run_until(tokio::time::sleep(Duration::from_secs(7))).await?;
    Ok(())
}
