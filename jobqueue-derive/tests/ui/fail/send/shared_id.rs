use jobqueue::{Queue, QueueMessage};

#[derive(serde::Serialize, serde::Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail")]
struct Mail {
    to: String,
}

async fn gives_many_messages_one_id(mails: &Queue<Mail>, list: &[Mail]) {
    let _ = mails.send_all(list).id("one").await;
}

fn main() {}
