//! The four messages, one for each queue.

use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Make a mosaic of the picture in the request's blobs.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "imagerequest", kind = "mosaic.image.request", poison_threshold = 3)]
pub(crate) struct ImageRequest {
    #[message(key)]
    pub(crate) request_id: Uuid,
    #[message(range(1..=64))]
    pub(crate) tile_size: u32,
    #[message(range(1..=256))]
    pub(crate) slices: u16,
}

/// Render one slice. The lease is short: when a processor dies, another takes over soon.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "slicerequest", kind = "mosaic.slice.request", lease = "5s")]
#[message(backoff(base = "1s", max = "30s"))]
pub(crate) struct SliceRequest {
    #[message(key)]
    pub(crate) request_id: Uuid,
    #[message(range(0..=255))]
    pub(crate) slice: u16,
}

/// All slices are rendered.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "sliceresponse", kind = "mosaic.slice.response")]
pub(crate) struct SliceResponse {
    #[message(key)]
    pub(crate) request_id: Uuid,
    #[message(range(1..=256))]
    pub(crate) slices: u16,
}

/// The mosaic is complete, or will never be.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "imageresponse", kind = "mosaic.image.response")]
pub(crate) struct ImageResponse {
    #[message(key)]
    pub(crate) request_id: Uuid,
    /// The reason why there is no mosaic.
    #[message(length(0..=2000))]
    pub(crate) failure: Option<String>,
}
