//! The job controller: cuts photographs into slices, and joins rendered slices to mosaics.

use jobqueue::batch::OnDeadLetters;
use jobqueue::{Context, JobError};
use tokio::task::spawn_blocking;

use crate::blobs;
use crate::client::answer_options;
use crate::messages::{ImageRequest, ImageResponse, SliceRequest, SliceResponse};
use crate::mosaic::{MosaicError, Slice, decode_picture, encode_png, join, slice};

/// Cuts a photograph and fans out its slices. It may be interrupted anywhere and run again: the blobs have
/// the same bytes, and the batch skips the slices that were sent.
pub(crate) async fn cut(request: ImageRequest, ctx: Context) -> Result<(), JobError> {
    let ImageRequest { request_id, tile_size, slices } = request;
    let folder = blobs::of(ctx.storage(), request_id).await?;
    let image = folder.get(blobs::IMAGE).await?;
    let cut = spawn_blocking(move || -> Result<Vec<(u16, Vec<u8>)>, MosaicError> {
        let picture = decode_picture("the photograph", &image)?;
        slice(&picture, tile_size, slices)?.iter().map(|slice| Ok((slice.index, slice.to_png()?))).collect()
    });
    let cut = match cut.await? {
        Ok(cut) => cut,
        Err(error) => {
            // The same picture would fail again: tell the client, and keep the reason.
            let response = ImageResponse { request_id, failure: Some(error.to_string()) };
            ctx.queue().await?.send(&response).with(answer_options(request_id)).await?;
            return Err(JobError::dead_letter(error));
        }
    };
    for (index, png) in cut {
        folder.put(&blobs::slice(index), png).await?;
    }
    let mut batch = ctx.batch(&format!("mosaic-{request_id}")).await?;
    batch.on_dead_letters(OnDeadLetters::Continue);
    batch.send_all((0..slices).map(|slice| SliceRequest { request_id, slice })).await?;
    batch.then(&SliceResponse { request_id, slices }).await?;
    Ok(())
}

/// Joins the slices and answers. Runs once, when all slices are rendered or given up.
pub(crate) async fn assemble(done: SliceResponse, ctx: Context) -> Result<(), JobError> {
    let SliceResponse { request_id, slices } = done;
    let given_up = ctx.batch_results::<()>().await?.into_iter().find_map(|slice| slice.outcome.err());
    if let Some(failure) = given_up {
        let response =
            ImageResponse { request_id, failure: Some(failure.detail.chars().take(2_000).collect()) };
        ctx.queue().await?.send(&response).with(answer_options(request_id)).await?;
        return Ok(());
    }
    let folder = blobs::of(ctx.storage(), request_id).await?;
    let mut parts = Vec::new();
    for index in 0..slices {
        parts.push((index, folder.get(&blobs::rendered(index)).await?));
    }
    let mosaic = spawn_blocking(move || -> Result<Vec<u8>, MosaicError> {
        let parts: Result<Vec<_>, _> =
            parts.iter().map(|(index, png)| Slice::from_png(*index, png)).collect();
        encode_png(&join(slices, parts?)?)
    });
    folder.put(blobs::MOSAIC, mosaic.await??).await?;
    let response = ImageResponse { request_id, failure: None };
    ctx.queue().await?.send(&response).with(answer_options(request_id)).await?;
    Ok(())
}
