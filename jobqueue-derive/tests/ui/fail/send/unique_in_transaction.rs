use std::time::Duration;

use jobqueue::sqlite::rusqlite::Connection;
use jobqueue::{Queue, QueueMessage};

#[derive(serde::Serialize, serde::Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail")]
struct Mail {
    #[message(key)]
    to: String,
}

fn sends_unique_work_in_a_transaction(mails: &Queue<Mail>, mail: &Mail, connection: &Connection) {
    let _ = mails.send(mail).unique_for(Duration::from_secs(60)).in_sqlite(connection);
}

fn main() {}
