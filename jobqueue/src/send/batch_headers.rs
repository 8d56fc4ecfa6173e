//! The headers that make a job a child of a batch, or its continuation. The batch sets them, and no other sender.

use crate::envelope::Envelope;
pub(crate) use crate::envelope::headers::batch::{
    ALL as BATCH_HEADERS, BATCH, COPY, INDEX, OF, OF_TOKEN, ON_DEAD, TOKEN,
};

/// Returns whether a job is a child of a batch, or its continuation.
pub(crate) fn is_of_batch(event: &Envelope) -> bool {
    event.extensions.contains_key(BATCH) || event.extensions.contains_key(OF)
}
