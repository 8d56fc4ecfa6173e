//! An adapter outside the crate: it can construct everything that the port's methods return, although most of it may
//! grow.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use jobqueue::settings::Metadata;
use jobqueue::storage::{
    Blob, BlobListing, BlobProperties, ETag, LeaseState, LeasedMessage, MessageId, MessageRef, PeekedMessage,
    PopReceipt, PutOutcome, QueueProperties, Received, StoreError, StoreErrorKind, Updated,
};

#[test]
fn what_the_port_returns_can_be_made_outside_the_crate() {
    let now = SystemTime::UNIX_EPOCH;
    let later = now + Duration::from_secs(60);
    let message = MessageRef { id: MessageId::new("1"), receipt: PopReceipt::new("r") };
    let put = PutOutcome::new(message.clone(), now, now).with_expires(later);
    assert_eq!((put.expires, put.next_visible), (Some(later), now));
    let leased = LeasedMessage::new(message.clone(), Ok("text".into()), 1, now, later).with_expires(None);
    assert_eq!((leased.expires, leased.next_visible), (None, later));
    let received = Received::new(vec![leased]).with_next_visible_in(Duration::from_secs(1));
    assert_eq!(received.messages.len(), 1);
    let peeked = PeekedMessage::new(message.id, Err("no text".into()), 0, now).with_expires(later);
    assert_eq!(peeked.expires, Some(later));
    assert_eq!(Updated::new(message.receipt, later).next_visible, later);
    assert_eq!(QueueProperties::new(Metadata::new(), 3).approximate_count, 3);

    let properties = BlobProperties::new(4, ETag::new("e"), now).with_lease(LeaseState::Leased);
    let properties = properties.with_metadata(Metadata::new().with("a", "b"));
    let blob = Blob::new(Bytes::from_static(b"text"), properties.clone());
    assert_eq!((blob.properties.length, blob.properties.lease), (4, LeaseState::Leased));
    let page =
        BlobListing::new(vec![("name".into(), properties)]).with_next("marker".to_owned()).with_now(later);
    assert_eq!((page.next.as_deref(), page.now), (Some("marker"), Some(later)));

    let error = StoreError::new(StoreErrorKind::Throttled, "put", "queue");
    let error = error.with_ambiguous(false).with_retry_after(Duration::from_secs(1)).with_detail("slow down");
    assert!(error.is_retryable() && error.retry_after() == Some(Duration::from_secs(1)));
}
