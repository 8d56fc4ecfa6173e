//! A video pipeline: scan → encode → compress → done, on image sequences that the example makes itself.
//!
//! Uploads become visible after a grace period (`--grace`). The stage and the frame are saved with the
//! message, so that after a kill the next worker continues from there. Prints, after a kill in the middle,
//! ```text
//! video-1: going on with encode at frame 14
//! video-1: done, 96 frames, 1769472 bytes to 61234
//! ```
//!
//! Try `--help`; kill it with `kill -9` and start it again with `--role work`.

#![allow(clippy::print_stdout, reason = "a program for people to look at")]

mod stages;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use jobqueue::{Context, JobError, QueueMessage, SendOptions, Storage, Worker};
use jobqueue_examples::{BlobFolder, Failure, Progress, end, open_storage, start};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

/// Scans, encodes and compresses videos that it makes itself.
#[derive(Debug, Parser)]
struct Options {
    /// The number of videos to submit
    #[arg(long, default_value_t = 2)]
    videos: u32,
    /// The frames of each video
    #[arg(long, default_value_t = 48)]
    frames: u32,
    /// The seconds before an upload is processed
    #[arg(long, default_value_t = 2)]
    grace: u64,
    /// The storage [default: JOBQUEUE_STORAGE, or sqlite:target/video_pipeline.db]
    #[arg(long)]
    storage: Option<String>,
    /// The role of this process
    #[arg(long, value_enum, default_value_t = Role::All)]
    role: Role,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Submits videos and works until all are done
    All,
    /// Only submits videos
    Submit,
    /// Works until everything waiting is done
    Work,
}

/// Process the frames in the blobs of `name`. The lease is short: a successor begins soon.
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "videos", kind = "video.process", lease = "3s")]
struct Video {
    #[message(key, non_empty)]
    name: String,
    #[message(range(1..=10_000))]
    frames: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
enum Stage {
    #[default]
    Scan,
    Encode,
    Compress,
}

/// The progress with which the next attempt begins.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Position {
    stage: Stage,
    frame: u32,
}

async fn process(video: Video, ctx: Context) -> Result<(), JobError> {
    let folder = folder(ctx.storage(), &video.name).await?;
    let mut at = ctx.resume::<Position>().await?.unwrap_or_default();
    if at.stage != Stage::Scan || at.frame > 0 {
        let stage = format!("{:?}", at.stage).to_lowercase();
        println!("{}: going on with {stage} at frame {}", video.name, at.frame);
    }
    let progress = Progress::new(video.name.clone(), u64::from(video.frames) * 2 + 1);
    while at.stage != Stage::Compress {
        let (stage, frame) = (at.stage, at.frame);
        let png = folder.get(&format!("frame-{frame}")).await?;
        if stage == Stage::Scan {
            // A broken upload stays broken.
            spawn_blocking(move || stages::scan(&png)).await?.map_err(JobError::dead_letter)?;
        } else {
            let before = match frame {
                0 => None,
                _ => Some(folder.get(&format!("frame-{}", frame - 1)).await?),
            };
            let encoded = spawn_blocking(move || stages::encode(before.as_deref(), &png)).await??;
            folder.put(&format!("encoded-{frame}"), encoded).await?;
        }
        at = match (stage, frame + 1 == video.frames) {
            (Stage::Scan, true) => Position { stage: Stage::Encode, frame: 0 },
            (_, true) => Position { stage: Stage::Compress, frame: 0 },
            (stage, false) => Position { stage, frame: frame + 1 },
        };
        ctx.checkpoint(&at).await?;
        let done = if at.stage == Stage::Scan { frame + 1 } else { video.frames + frame + 1 };
        progress.at(done.into());
    }
    let mut encoded = Vec::new();
    for frame in 0..video.frames {
        encoded.extend_from_slice(&folder.get(&format!("encoded-{frame}")).await?);
    }
    let before = encoded.len();
    let compressed = spawn_blocking(move || stages::compress(&encoded)).await??;
    let after = compressed.len();
    folder.put("video", compressed).await?;
    progress.done();
    println!("{}: done, {} frames, {before} bytes to {after}", video.name, video.frames);
    Ok(())
}

async fn folder(storage: &Storage, name: &str) -> Result<BlobFolder, jobqueue_examples::FolderError> {
    BlobFolder::open(storage, "videos", name).await
}

#[tokio::main]
async fn main() -> ExitCode {
    end(run(start()).await)
}

async fn run(options: Options) -> Result<(), Failure> {
    let storage = open_storage(options.storage.as_deref(), "video_pipeline").await?;
    if options.role != Role::Work {
        submit(&storage, &options).await?;
    }
    if options.role != Role::Submit {
        // Idle does not mean done: a video within its grace period, or leased by a dead worker, becomes
        // visible later.
        let videos = storage.queue::<Video>().await?;
        while !videos.is_empty().await? {
            let worker = Worker::builder(storage.clone()).handle(process).concurrency(4);
            let _ = worker.build()?.run_until_idle().await?;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    Ok(())
}

async fn submit(storage: &Storage, options: &Options) -> Result<(), Failure> {
    let videos = storage.queue::<Video>().await?;
    let grace = SendOptions::new().delay(Duration::from_secs(options.grace));
    for number in 1..=options.videos {
        let name = format!("video-{number}");
        let folder = folder(storage, &name).await?;
        for frame in 0..options.frames {
            folder.put(&format!("frame-{frame}"), stages::draw(number, frame)?).await?;
        }
        videos.send(&Video { name: name.clone(), frames: options.frames }).with(grace.clone()).await?;
        println!("{name}: submitted, visible in {} s", options.grace);
    }
    Ok(())
}
