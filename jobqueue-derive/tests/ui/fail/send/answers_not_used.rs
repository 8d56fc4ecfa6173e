#![deny(unused_must_use)]

use jobqueue::{Error, Queue, QueueMessage};

#[derive(serde::Serialize, serde::Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail")]
struct Mail {
    to: String,
}

async fn forgets_the_answers(mails: &Queue<Mail>, mail: &Mail) -> Result<(), Error> {
    mails.send_all([mail]).await?;
    Ok(())
}

fn main() {}
