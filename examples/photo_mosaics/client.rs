//! The client: submits a photograph and waits for its mosaic.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use jobqueue::{SendOptions, Storage};
use jobqueue_examples::{BlobFolder, Failure, Progress};
use uuid::Uuid;

use crate::Options;
use crate::blobs;
use crate::messages::{ImageRequest, ImageResponse};
use crate::mosaic::{MAX_SLICES, MosaicError, TileLibrary, decode_picture, max_slices};

/// NASA's portrait of Eileen Collins; see `assets/SOURCES.md`.
const PORTRAIT: &[u8] = include_bytes!("assets/portrait.jpg");

/// The checked input.
pub(crate) struct Submission {
    image: Vec<u8>,
    tiles: Vec<u8>,
    request: ImageRequest,
}

impl Submission {
    /// Reads and checks the input; sends nothing.
    pub(crate) fn prepare(options: &Options) -> Result<Self, Failure> {
        let (name, image) = match &options.image {
            None => ("the built-in portrait".to_owned(), PORTRAIT.to_vec()),
            Some(path) => {
                let read = std::fs::read(path);
                let name = path.display().to_string();
                (name.clone(), read.map_err(|e| format!("the picture {name} cannot be read: {e}"))?)
            }
        };
        let library = match &options.tiles {
            None => TileLibrary::built_in(options.tile_size)?,
            Some(folder) => TileLibrary::from_directory(folder, options.tile_size)?,
        };
        let picture = decode_picture(&name, &image)?;
        let rows = max_slices(picture.height(), options.tile_size).min(MAX_SLICES);
        let slices = options.slices.unwrap_or(rows.min(8));
        if slices == 0 || slices > rows {
            return Err(MosaicError::SliceCount { asked: slices, rows: rows.into() }.into());
        }
        check_writable(&options.out)?;
        let tile_size = options.tile_size;
        let request = ImageRequest { request_id: Uuid::now_v7(), tile_size, slices };
        Ok(Self { image, tiles: library.to_png()?, request })
    }
}

/// Submits the photograph, waits for the mosaic and writes it.
pub(crate) async fn make(storage: &Storage, submission: Submission, out: &Path) -> Result<(), Failure> {
    let Submission { image, tiles, request } = submission;
    let folder = blobs::of(storage, request.request_id).await?;
    // Write the blobs before the message that refers to them, so that no request is half-submitted.
    folder.put(blobs::IMAGE, image).await?;
    folder.put(blobs::TILES, tiles).await?;
    storage.queue::<ImageRequest>().await?.send(&request).await?;

    let fetched = fetch(storage, &request, &folder).await;
    // Nobody needs the request's blobs any more, whatever the result.
    folder.delete("").await?;
    std::fs::write(out, fetched?).map_err(|e| format!("{} cannot be written: {e}", out.display()))?;
    println!("mosaic: {}", out.display());
    Ok(())
}

/// Shows the progress until the answer arrives, then reads the mosaic.
async fn fetch(storage: &Storage, request: &ImageRequest, folder: &BlobFolder) -> Result<Bytes, Failure> {
    let progress = Progress::new("slices", request.slices.into());
    let response = tokio::select! {
        response = wait(storage, request.request_id) => response?,
        Err(failed) = show(&progress, folder) => return Err(failed),
    };
    if let Some(failure) = response.failure {
        return Err(format!("no mosaic could be made: {failure}").into());
    }
    progress.done();
    Ok(folder.get(blobs::MOSAIC).await?)
}

/// Checks before any work is done that the mosaic can be written.
fn check_writable(out: &Path) -> Result<(), Failure> {
    let cannot = |e| format!("{} cannot be written: {e}", out.display());
    if let Some(folder) = out.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(cannot)?;
    }
    let existed = out.exists();
    std::fs::OpenOptions::new().append(true).create(true).open(out).map_err(cannot)?;
    if !existed {
        std::fs::remove_file(out).map_err(cannot)?;
    }
    Ok(())
}

/// Waits for the answer to one request. All clients share the queue: an answer for another client is put
/// back, for longer each time. Unfetched answers expire after an hour.
async fn wait(storage: &Storage, request: Uuid) -> Result<ImageResponse, Failure> {
    let responses = storage.queue::<ImageResponse>().await?;
    loop {
        let Some(delivery) = responses.receive(Duration::from_secs(10)).await? else { continue };
        if delivery.message().request_id == request {
            let response = delivery.message().clone();
            delivery.complete().await?;
            return Ok(response);
        }
        let others = delivery.info().dequeue_count.min(20);
        delivery.release(Duration::from_millis(250) * others).await?;
    }
}

/// Shows how many slices are rendered. Ends only if the storage fails.
async fn show(progress: &Progress, folder: &BlobFolder) -> Result<(), Failure> {
    loop {
        progress.at(folder.count(blobs::RENDERED).await?);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Returns the send options of an answer.
pub(crate) fn answer_options(request: Uuid) -> SendOptions {
    SendOptions::new().id(format!("{request}-response")).ttl(Duration::from_secs(3_600))
}
