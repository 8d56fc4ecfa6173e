//! Lesson 7: a message type changes while messages wait and old programs still send.
//!
//! Teaches versions, the way from one to the next, aliases of kinds, and what a worker does with a version it does not
//! know yet. Prints
//!
//! ```text
//! an old worker puts the new message back: 1
//! to ada@example.org: 1 recipients
//! to grace@example.org: 2 recipients
//! ```

#![allow(clippy::print_stdout, reason = "a program for people to look at")]

use std::time::Duration;

use jobqueue::{JobError, QueueMessage, Worker};
use jobqueue_examples::{Failure, open_storage};
use serde::{Deserialize, Serialize};

/// As it was in the first release.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail")]
struct MailV1 {
    to: String,
}

/// As it is now: another name of the kind, another form of the payload. Workers of this release read both.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail.send", alias = "mail", version = 2, upgrade_from = MailV1)]
struct Mail {
    recipients: Vec<String>,
}

/// `TryFrom` where an old message may be impossible to bring up to date; it is dead-lettered then.
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
    let storage = open_storage(None, "changing").await?;
    let mails = storage.queue::<Mail>().await?;
    mails.clear().await?;
    let recipients = ["grace@example.org", "alan@example.org"].map(str::to_owned).to_vec();
    mails.send(&Mail { recipients }).await?;

    // A worker of the first release gets it before the deployment is through: a newer one is to have it.
    let old = Worker::builder(storage.clone()).handle(old_handler).build()?;
    println!("an old worker puts the new message back: {}", old.run_until_idle().await?.released);

    // What an old program sends is brought up to date on its way to the handler.
    storage.queue::<MailV1>().await?.send(&MailV1 { to: "ada@example.org".to_owned() }).await?;
    let new = Worker::builder(storage).handle(handler).build()?;
    let both = async { tokio::time::sleep(Duration::from_secs(7)).await };
    let _ = new.run_until(both).await?;
    Ok(())
}
