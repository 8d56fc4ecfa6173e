//! Reads the XML of messages one message at a time, so that an invalid message does not affect the others.
//!
//! The SDK's models are not used here: with them, a single unexpected element fails the whole answer, after
//! the get has already leased every message in it.

use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::{BytesRef, Event};
use quick_xml::reader::Reader;

use jobqueue_storage::rules::illegal_character;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RawMessage {
    pub(super) id: Option<String>,
    pub(super) receipt: Option<String>,
    pub(super) inserted: Option<String>,
    pub(super) expires: Option<String>,
    pub(super) next_visible: Option<String>,
    pub(super) dequeue_count: Option<String>,
    /// The text, or the reason why it cannot be read.
    pub(super) text: Option<Result<String, String>>,
}

#[derive(Debug, Default)]
pub(super) struct RawMessages {
    pub(super) messages: Vec<RawMessage>,
    /// The reason why reading stopped before the end, if it did.
    pub(super) broken: Option<String>,
}

/// The root element of a list of messages. An answer without it is not an empty list, but an unreadable
/// answer.
const MESSAGES_ROOT: &[u8] = b"QueueMessagesList";

/// Reads the messages of an answer to put, get or peek. Unknown elements are ignored.
pub(super) fn read_messages(body: &[u8]) -> RawMessages {
    let mut all = RawMessages::default();
    // The service writes a byte order mark.
    let body = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body);
    let mut reader = Reader::from_reader(body);
    // The number of open elements: 1 is QueueMessagesList, 2 is QueueMessage, 3 is a field, more is inside a
    // field.
    let mut depth = 0_usize;
    let mut root = false;
    let mut field = Field::default();
    let mut message: Option<RawMessage> = None;
    let broken = loop {
        match reader.read_event() {
            Ok(Event::Start(start)) => {
                depth += 1;
                match depth {
                    1 => root |= start.local_name().as_ref() == MESSAGES_ROOT,
                    2 => message = Some(RawMessage::default()),
                    3 => field = Field::new(start.local_name().as_ref()),
                    _ => {}
                }
            }
            Ok(Event::End(_)) => {
                if depth == 3 {
                    std::mem::take(&mut field).store(message.as_mut());
                } else if depth == 2 {
                    all.messages.extend(message.take());
                }
                depth = depth.saturating_sub(1);
            }
            Ok(Event::Empty(empty)) if depth == 0 => root |= empty.local_name().as_ref() == MESSAGES_ROOT,
            Ok(Event::Empty(empty)) if depth == 2 => {
                Field::new(empty.local_name().as_ref()).store(message.as_mut());
            }
            Ok(Event::Text(text)) if depth == 3 => field.push(text.as_ref()),
            Ok(Event::CData(text)) if depth == 3 => field.push(text.as_ref()),
            Ok(Event::GeneralRef(reference)) if depth == 3 => field.push_reference(&reference),
            Ok(Event::Eof) => break at_end(depth, root),
            // The service sends no DTD, so an answer with one comes from another server.
            Ok(Event::DocType(_)) => break Some("the answer has a document type"),
            Ok(_) => {}
            Err(_) => break Some("the answer is not XML"),
        }
    };
    all.broken = broken.map(str::to_owned);
    all
}

/// Returns the problem of a document that ends with `depth` open elements; `root` is true if its root was
/// read.
fn at_end(depth: usize, root: bool) -> Option<&'static str> {
    match (depth, root) {
        (0, true) => None,
        (0, false) => Some("the answer is not a list of messages"),
        _ => Some("the answer ends in the middle"),
    }
}

/// The element that is being read.
#[derive(Default)]
struct Field {
    name: Vec<u8>,
    content: Vec<u8>,
    problem: Option<String>,
}

impl Field {
    fn new(name: &[u8]) -> Self {
        Self { name: name.to_vec(), ..Self::default() }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.content.extend_from_slice(bytes);
    }

    fn push_reference(&mut self, reference: &BytesRef<'_>) {
        let name = std::str::from_utf8(reference).ok();
        match (reference.resolve_char_ref(), name.and_then(resolve_xml_entity)) {
            (Ok(Some(character)), _) => self.push(character.encode_utf8(&mut [0; 4]).as_bytes()),
            (Ok(None), Some(text)) => self.push(text.as_bytes()),
            _ => self.problem = Some("the text has an invalid character reference".to_owned()),
        }
    }

    fn value(self) -> Result<String, String> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        let text = String::from_utf8(self.content).map_err(|_| "the text is not UTF-8".to_owned())?;
        match illegal_character(&text) {
            Some((_, bad)) => {
                Err(format!("the text has the character U+{:04X}, which XML cannot carry", u32::from(bad)))
            }
            None => Ok(text),
        }
    }

    fn store(self, message: Option<&mut RawMessage>) {
        let Some(message) = message else { return };
        let slot = match self.name.as_slice() {
            b"MessageText" => {
                message.text = Some(self.value());
                return;
            }
            b"MessageId" => &mut message.id,
            b"PopReceipt" => &mut message.receipt,
            b"InsertionTime" => &mut message.inserted,
            b"ExpirationTime" => &mut message.expires,
            b"TimeNextVisible" => &mut message.next_visible,
            b"DequeueCount" => &mut message.dequeue_count,
            _ => return,
        };
        *slot = self.value().ok().filter(|value| !value.is_empty());
    }
}

/// Returns the body of a put or an update. The characters of `text` must be valid in XML.
pub(super) fn write_message(text: &str) -> String {
    const HEAD: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?><QueueMessage><MessageText>";
    const TAIL: &str = "</MessageText></QueueMessage>";
    let mut body = String::with_capacity(HEAD.len() + text.len() + text.len() / 8 + TAIL.len());
    body.push_str(HEAD);
    for c in text.chars() {
        match c {
            '&' => body.push_str("&amp;"),
            '<' => body.push_str("&lt;"),
            '>' => body.push_str("&gt;"),
            // XML readers turn a bare carriage return into a line feed.
            '\r' => body.push_str("&#13;"),
            c => body.push(c),
        }
    }
    body.push_str(TAIL);
    body
}

#[cfg(test)]
#[path = "xml_tests.rs"]
mod tests;
