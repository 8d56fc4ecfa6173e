#![deny(unused_must_use)]

use jobqueue::{Queue, QueueMessage};

#[derive(serde::Serialize, serde::Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail")]
struct Mail {
    #[message(key)]
    to: String,
}

async fn forgets_to_await(mails: &Queue<Mail>, mail: &Mail) {
    mails.send(mail);
    mails.send(mail).delay(std::time::Duration::from_secs(60));
    mails.send_all([mail]);
}

fn main() {}
