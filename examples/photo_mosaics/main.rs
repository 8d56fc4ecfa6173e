//! Photo Mosaics: a photograph made of small pictures, by four queues.
//!
//! ```text
//!  client ──imagerequest──► controller ──slicerequest──► processors
//!     ▲                        │  ▲                          │
//!     └─────imageresponse──────┘  └──────sliceresponse───────┘ once, when all slices are done (a batch)
//! ```
//!
//! Pictures, slices and tiles are blobs; messages carry their keys. The controller cuts the photograph into
//! slices and fans them out as a batch. Processors render them and save their progress after each row. When
//! all are done the controller joins them and answers. Kill any of the processes at any time and start
//! another: the mosaic has the same bytes.
//!
//! The program prints where the mosaic is. Try `--help`.

#![allow(clippy::print_stdout, reason = "a program for people to look at")]

mod blobs;
mod client;
mod controller;
mod messages;
mod mosaic;
mod processor;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use jobqueue::{Storage, Worker, shutdown_signal};
use jobqueue_examples::{Failure, end, open_storage, start};

/// Makes a mosaic of a photograph, out of many small pictures.
#[derive(Debug, Parser)]
struct Options {
    /// The photograph, PNG or JPEG [default: a portrait by NASA]
    #[arg(long)]
    image: Option<PathBuf>,
    /// A folder of PNG and JPEG pictures for the tiles [default: seven built-in pictures]
    #[arg(long)]
    tiles: Option<PathBuf>,
    /// The file for the mosaic, as PNG
    #[arg(long, default_value = "target/mosaic.png")]
    out: PathBuf,
    /// The side of a tile in pixels, 1 to 64
    #[arg(long, default_value_t = 16)]
    tile_size: u32,
    /// The number of slices of the photograph [default: 8, or fewer for a small picture]
    #[arg(long)]
    slices: Option<u16>,
    /// The storage [default: JOBQUEUE_STORAGE, or sqlite:target/photo_mosaics.db]
    #[arg(long)]
    storage: Option<String>,
    /// The role of this process
    #[arg(long, value_enum, default_value_t = Role::All)]
    role: Role,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// All roles, until the mosaic is complete
    All,
    /// Submits the photograph and waits for the mosaic
    Client,
    /// Cuts and joins, until it receives a signal to stop
    Controller,
    /// Renders slices, until it receives a signal to stop
    Processor,
}

#[tokio::main]
async fn main() -> ExitCode {
    end(run(start()).await)
}

async fn run(options: Options) -> Result<(), Failure> {
    // Mistakes in the input are found before anything is submitted.
    let submission = match options.role {
        Role::All | Role::Client => Some(client::Submission::prepare(&options)?),
        Role::Controller | Role::Processor => None,
    };
    let storage = open_storage(options.storage.as_deref(), "photo_mosaics").await?;
    let (told, stop) = stop_signal();
    match (submission, options.role) {
        (Some(submission), Role::Client) => client::make(&storage, submission, &options.out).await,
        (Some(submission), _) => {
            let make = async {
                let made = client::make(&storage, submission, &options.out).await;
                drop(told);
                made
            };
            // A worker that cannot start ends the program.
            tokio::try_join!(make, work(storage.clone(), Role::All, stop)).map(drop)
        }
        (None, role) => {
            tokio::spawn(async move {
                shutdown_signal().await;
                drop(told);
            });
            work(storage, role, stop).await
        }
    }
}

/// Returns two ends of a signal: dropping the first one fires the second.
fn stop_signal() -> (tokio::sync::oneshot::Sender<()>, tokio::sync::oneshot::Receiver<()>) {
    tokio::sync::oneshot::channel()
}

async fn work(storage: Storage, role: Role, stop: tokio::sync::oneshot::Receiver<()>) -> Result<(), Failure> {
    let mut worker = Worker::builder(storage).state(processor::Atlas::default()).concurrency(6);
    if matches!(role, Role::All | Role::Controller) {
        worker = worker.handle(controller::cut).handle(controller::assemble);
    }
    if matches!(role, Role::All | Role::Processor) {
        worker = worker.handle(processor::render);
    }
    let report = worker.build()?.run_until(async { drop(stop.await) }).await?;
    tracing::info!(?report, "stopped");
    Ok(())
}
