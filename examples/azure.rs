//! Jobs on Azure Storage, with each of its three kinds of credential. The form of `--storage` chooses the
//! kind:
//!
//! ```text
//! npx azurite                                                                       # an emulator on this machine
//! cargo run --features azure --example azure                                                         # … used by default
//! cargo run --features azure --example azure -- --storage https://ACCOUNT.queue.core.windows.net     # Entra ID: nothing secret
//! cargo run --features azure --example azure -- --storage "QueueEndpoint=…;BlobEndpoint=…;SharedAccessSignature=…"
//! cargo run --features azure --example azure -- --storage "DefaultEndpointsProtocol=https;AccountName=…;AccountKey=…"
//! ```
//!
//! Pass keys and signatures by `JOBQUEUE_STORAGE` rather than on the command line, where other users can see
//! them. The worker names missing permissions when it starts.

#![allow(clippy::print_stdout)] // A program that tells what it does.

use clap::Parser;
use jobqueue::azure::Options;
use jobqueue::{JobError, JobInfo, QueueMessage, Storage, Worker};
use serde::{Deserialize, Serialize};

/// Sends jobs over Azure Storage and runs them.
#[derive(Parser)]
struct Arguments {
    /// An endpoint (https://…) or a connection string.
    #[arg(
        long,
        env = "JOBQUEUE_STORAGE",
        hide_env_values = true,
        default_value = "UseDevelopmentStorage=true"
    )]
    storage: String,
    /// The queue for the jobs; `<queue>-poison` is its dead-letter queue. Both are created if the credential
    /// allows it.
    #[arg(long, default_value = "translations")]
    queue: String,
    /// The client id of a user-assigned managed identity.
    #[arg(long)]
    client_id: Option<String>,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "translations", kind = "translation.request", poison_threshold = 3)]
struct Translate {
    #[message(key, non_empty)]
    document: String,
    text: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let storage = open(&arguments).await?;
    println!("storage: {}", storage.description());

    let translations = storage.queue_named::<Translate>(&arguments.queue).await?;
    for (document, text) in [
        ("letter", "Guten Tag".to_owned()),
        // Over 64 KiB: the payload travels in a blob, which is deleted with the job.
        ("novel", "Es war einmal ".repeat(10_000)),
        ("poem", String::new()),
    ] {
        let sent = translations.send(&Translate { document: document.to_owned(), text }).await?;
        println!("sent {document}: job {}", sent.id());
    }

    let worker = Worker::builder(storage).handle_on(arguments.queue, translate).build()?;
    let report = worker.run_until_idle().await?;
    println!("completed {}, dead-lettered {}", report.completed, report.dead_lettered);
    for letter in translations.dead_letters()?.list().await?.letters {
        let document = letter.key.unwrap_or_default();
        println!("dead letter {document}: {} ({})", letter.reason, letter.error.unwrap_or_default());
    }
    Ok(())
}

async fn translate(job: Translate, info: JobInfo) -> Result<(), JobError> {
    if job.text.is_empty() {
        return Err(JobError::dead_letter("there is nothing to translate"));
    }
    println!("translated {}: {} bytes, attempt {}", job.document, job.text.len(), info.attempt);
    Ok(())
}

/// Opens the storage. `Storage::connect` accepts all of these too; the options can say more, such as which
/// identity.
async fn open(arguments: &Arguments) -> Result<Storage, Box<dyn std::error::Error>> {
    let string = arguments.storage.trim();
    let options = if string.starts_with("https://") {
        println!("right: Entra ID");
        let options = Options::from_endpoint(string)?;
        match &arguments.client_id {
            Some(id) => options.managed_identity(Some(id)),
            None => options,
        }
    } else {
        let is_sas = string.contains("SharedAccessSignature=");
        println!("right: {}", if is_sas { "shared access signature" } else { "account key" });
        Options::from_connection_string(string)?
    };
    Ok(Storage::open(options).await?)
}
