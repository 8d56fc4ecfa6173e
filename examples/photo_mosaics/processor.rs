//! The image processor: renders a slice row by row, and saves its progress.

use std::sync::{Arc, Mutex, PoisonError};

use jobqueue::{Context, JobError, State};
use jobqueue_examples::BlobFolder;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use uuid::Uuid;

use crate::blobs;
use crate::messages::SliceRequest;
use crate::mosaic::{MosaicError, Slice, SliceRenderer, TileLibrary, decode_rendered, encode_png, stack};

/// The tile library of the latest request; all slices of a request share it.
#[derive(Clone, Default)]
pub(crate) struct Atlas(Arc<Mutex<Known>>);

type Known = Option<(Uuid, Arc<TileLibrary>)>;

impl Atlas {
    async fn of(&self, request: Uuid, folder: &BlobFolder) -> Result<Arc<TileLibrary>, JobError> {
        if let Some((known, library)) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner)
            && *known == request
        {
            return Ok(Arc::clone(library));
        }
        let tiles = folder.get(blobs::TILES).await?;
        let library = Arc::new(spawn_blocking(move || TileLibrary::from_png(&tiles)).await??);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((request, Arc::clone(&library)));
        Ok(library)
    }
}

/// The number of rows of tiles that are rendered and stored.
#[derive(Default, Serialize, Deserialize)]
struct Progress {
    rows: u32,
}

/// Renders a slice. Each row is stored as a strip before the checkpoint counts it; a later attempt begins
/// after it.
pub(crate) async fn render(
    request: SliceRequest,
    ctx: Context,
    State(atlas): State<Atlas>,
) -> Result<(), JobError> {
    let SliceRequest { request_id, slice: index } = request;
    let folder = blobs::of(ctx.storage(), request_id).await?;
    let library = atlas.of(request_id, &folder).await?;
    let slice = Arc::new(Slice::from_png(index, &folder.get(&blobs::slice(index)).await?)?);
    let rows = SliceRenderer::new(&library, &slice.picture)?.rows();
    let done = ctx.resume::<Progress>().await?.unwrap_or_default().rows;
    if done > 0 {
        tracing::info!(slice = index, row = done, "going on where the last attempt had come");
    }
    for row in done..rows {
        let (library, slice) = (Arc::clone(&library), Arc::clone(&slice));
        let strip = spawn_blocking(move || -> Result<Vec<u8>, MosaicError> {
            encode_png(&SliceRenderer::new(&library, &slice.picture)?.render_rows(row..row + 1)?)
        });
        folder.put(&blobs::strip(index, row), strip.await??).await?;
        ctx.checkpoint(&Progress { rows: row + 1 }).await?;
    }
    let mut strips = Vec::new();
    for row in 0..rows {
        strips.push(folder.get(&blobs::strip(index, row)).await?);
    }
    let rendered = spawn_blocking(move || -> Result<Vec<u8>, MosaicError> {
        let strips: Result<Vec<_>, _> = strips.iter().map(|png| decode_rendered("a strip", png)).collect();
        encode_png(&stack(strips?)?)
    });
    folder.put(&blobs::rendered(index), rendered.await??).await?;
    Ok(())
}
