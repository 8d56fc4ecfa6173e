//! Checks arguments in the order and with the limits that Azure documents.
//!
//! Azure counts in whole seconds. Storages with their own clocks accept milliseconds, so that tests need not
//! wait for seconds; they refuse only zero where Azure requires at least one second.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::xml::{MAX_ESCAPED_BYTES, escaped_bytes, illegal_character};
use crate::name::{BlobName, QueueName};
use crate::{GetMessages, Metadata, Operation, PutMessage, StoreError, StoreErrorKind, UpdateMessage};

/// The maximum size in bytes of a message's text, as sent: 64 KiB ([Put Message]).
///
/// [Put Message]: https://learn.microsoft.com/rest/api/storageservices/put-message
pub const MAX_TEXT_BYTES: usize = 65_536;

/// The maximum number of messages that one call to get or peek returns ([Get Messages]).
///
/// [Get Messages]: https://learn.microsoft.com/rest/api/storageservices/get-messages
pub const MAX_MESSAGES: u32 = 32;

/// The longest visibility timeout: 7 days ([Get Messages]).
///
/// [Get Messages]: https://learn.microsoft.com/rest/api/storageservices/get-messages
pub const MAX_VISIBILITY: Duration = Duration::from_secs(604_800);

/// The shortest and the longest blob lease.
const BLOB_LEASE: std::ops::RangeInclusive<Duration> = Duration::from_secs(15)..=Duration::from_secs(60);

/// The maximum number of blobs in a page of a listing.
pub const MAX_LISTED_BLOBS: usize = 5_000;

/// Checks a message to add.
///
/// # Errors
/// `TooLarge` for the size of the text; `InvalidInput` for its characters, the delay or the time to live.
pub fn check_put(queue: &QueueName, message: &PutMessage) -> Result<(), StoreError> {
    let fail = |detail: &str| Err(invalid(Operation::Put, queue, detail));
    check_text(Operation::Put, queue, &message.text)?;
    if message.visibility_delay > MAX_VISIBILITY {
        return fail("the delay is longer than 7 days");
    }
    match message.ttl {
        Some(ttl) if ttl.is_zero() => fail("the time to live is zero; it must be positive"),
        Some(ttl) if message.visibility_delay >= ttl => fail(
            "the delay is not shorter than the time to live; the message would expire before it is visible",
        ),
        _ => Ok(()),
    }
}

/// A checked list of messages to add. A refused message does not affect the others.
#[derive(Debug)]
pub struct CheckedMessages {
    /// The messages within the limits, in their order.
    pub wanted: Arc<[PutMessage]>,
    refused: Vec<Option<StoreError>>,
}

impl CheckedMessages {
    /// Checks each message of a list as [`check_put`] does.
    pub fn new(queue: &QueueName, messages: Arc<[PutMessage]>) -> Self {
        let refused: Vec<_> = messages.iter().map(|message| check_put(queue, message).err()).collect();
        let wanted = if refused.iter().all(Option::is_none) {
            messages
        } else {
            let wanted = messages.iter().zip(&refused).filter(|(_, refused)| refused.is_none());
            wanted.map(|(message, _)| message.clone()).collect()
        };
        Self { wanted, refused }
    }

    /// Returns the answers for the whole list, given the answer for the messages within the limits; an error
    /// of `put` applies to each of these.
    pub fn answers<T>(self, put: Result<Vec<T>, StoreError>) -> Vec<Result<T, StoreError>> {
        let answers: Vec<_> = match put {
            Ok(outcomes) => outcomes.into_iter().map(Ok).collect(),
            Err(error) => error.for_each(self.wanted.len()).map(Err).collect(),
        };
        let mut answers = answers.into_iter();
        self.refused.into_iter().filter_map(|refused| refused.map(Err).or_else(|| answers.next())).collect()
    }
}

/// Checks the arguments of a get.
///
/// # Errors
/// `InvalidInput` unless the count is 1–32 and the visibility timeout is positive and at most 7 days.
pub fn check_get(queue: &QueueName, options: &GetMessages) -> Result<(), StoreError> {
    check_count(Operation::Get, queue, options.count)?;
    if options.visibility.is_zero() || options.visibility > MAX_VISIBILITY {
        return Err(invalid(Operation::Get, queue, "the visibility timeout must be 1 second to 7 days"));
    }
    Ok(())
}

/// Checks the count of a peek.
///
/// # Errors
/// `InvalidInput` unless the count is 1–32.
pub fn check_peek(queue: &QueueName, count: u32) -> Result<(), StoreError> {
    check_count(Operation::Peek, queue, count)
}

/// Checks the count of a page of messages.
///
/// # Errors
/// `InvalidInput` unless the count is 1–1,000.
pub fn check_page(queue: &QueueName, count: u32) -> Result<(), StoreError> {
    match count {
        1..=1_000 => Ok(()),
        _ => Err(invalid(Operation::Peek, queue, "the count is not from 1 to 1,000")),
    }
}

/// Checks a change to a message, except for [`check_before_expiry`].
///
/// # Errors
/// `TooLarge` for the size of the text; `InvalidInput` for its characters or the visibility timeout.
pub fn check_update(queue: &QueueName, change: &UpdateMessage) -> Result<(), StoreError> {
    if let Some(text) = &change.text {
        check_text(Operation::Update, queue, text)?;
    }
    if change.visibility > MAX_VISIBILITY {
        return Err(invalid(Operation::Update, queue, "the visibility timeout is longer than 7 days"));
    }
    Ok(())
}

/// Checks that an update does not hide a message until after its expiry.
///
/// # Errors
/// `InvalidInput` if `next_visible` is later than `expires`.
pub fn check_before_expiry(
    queue: &QueueName,
    next_visible: SystemTime,
    expires: Option<SystemTime>,
) -> Result<(), StoreError> {
    match expires {
        Some(expires) if next_visible > expires => Err(invalid(
            Operation::Update,
            queue,
            "the message would become visible only after its time to live; ask for a shorter visibility timeout",
        )),
        _ => Ok(()),
    }
}

/// Checks the metadata of a queue or blob.
///
/// # Errors
/// `InvalidInput` if [`Metadata::check`] refuses it.
pub fn check_metadata(
    operation: Operation,
    subject: &dyn std::fmt::Display,
    metadata: &Metadata,
) -> Result<(), StoreError> {
    metadata.check().map_err(|problem| invalid(operation, subject, &problem))
}

/// Checks the duration of a blob lease.
///
/// # Errors
/// `InvalidInput` unless it is 15–60 whole seconds.
pub fn check_lease_duration(blob: &BlobName, duration: Duration) -> Result<(), StoreError> {
    if !BLOB_LEASE.contains(&duration) || duration.subsec_nanos() != 0 {
        return Err(invalid(Operation::AcquireLease, blob, "a lease lasts 15 to 60 whole seconds"));
    }
    Ok(())
}

/// Checks the text of a message: its characters, its size, its size in XML.
///
/// # Errors
/// `InvalidInput` for characters that XML 1.0 cannot carry, `TooLarge` for the sizes.
fn check_text(operation: Operation, queue: &QueueName, text: &str) -> Result<(), StoreError> {
    let large = |detail| {
        Err(StoreError::new(StoreErrorKind::TooLarge, operation.as_str(), queue).with_detail(detail))
    };
    if text.len() > MAX_TEXT_BYTES {
        return large(format!("the text has {} bytes; {MAX_TEXT_BYTES} are allowed", text.len()));
    }
    // Escaping turns one byte into at most five, so short texts need no counting.
    let escaped = if text.len() <= MAX_ESCAPED_BYTES / 5 { text.len() } else { escaped_bytes(text) };
    if escaped > MAX_ESCAPED_BYTES {
        return large(format!("the text has {escaped} bytes in XML; {MAX_ESCAPED_BYTES} are allowed"));
    }
    match illegal_character(text) {
        Some((at, c)) => Err(invalid(
            operation,
            queue,
            &format!("the text has U+{:04X} at byte {at}, which XML cannot carry; encode the text", c as u32),
        )),
        None => Ok(()),
    }
}

fn check_count(operation: Operation, queue: &QueueName, count: u32) -> Result<(), StoreError> {
    if (1..=MAX_MESSAGES).contains(&count) {
        Ok(())
    } else {
        Err(invalid(
            operation,
            queue,
            &format!("{count} messages were asked for; 1 to {MAX_MESSAGES} are allowed"),
        ))
    }
}

fn invalid(operation: Operation, subject: &dyn std::fmt::Display, detail: &str) -> StoreError {
    StoreError::new(StoreErrorKind::InvalidInput, operation.as_str(), subject).with_detail(detail)
}
