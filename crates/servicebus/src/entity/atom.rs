//! Reads and writes the Atom documents of the management API.

use std::time::{Duration, SystemTime};

use jiff::{Span, SpanRelativeTo};
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::Event;
use quick_xml::reader::Reader;

use super::NewQueues;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) name: String,
    pub(crate) lock_duration: Option<Duration>,
    pub(crate) max_delivery_count: Option<u32>,
    pub(crate) requires_session: bool,
    pub(crate) detects_duplicates: bool,
    /// The default time to live of messages, and whether expired messages are dead-lettered.
    pub(crate) time_to_live: Option<Duration>,
    pub(crate) dead_letters_expired: bool,
    /// The idle time after which the service deletes the queue.
    pub(crate) deleted_when_idle: Option<Duration>,
    pub(crate) forwards: bool,
    pub(crate) forwards_dead_letters: bool,
    pub(crate) is_partitioned: bool,
    /// True if messages are at first kept only in memory.
    pub(crate) is_express: bool,
    /// The number of active and scheduled messages, including leased ones; `None` if it is not in the
    /// document.
    pub(crate) messages: Option<u64>,
    pub(crate) dead_letters: Option<u64>,
    /// The size of all messages in bytes, including dead letters, and the limit at which the queue accepts no
    /// more.
    pub(crate) size: Option<u64>,
    pub(crate) max_megabytes: Option<u64>,
    /// The status of the queue, unless it is `Active`.
    pub(crate) inactive_status: Option<String>,
    /// The service's time when it answered.
    pub(crate) now: Option<SystemTime>,
}

/// Returns the queues of an entry or a feed; `None` if the text is neither.
pub(super) fn read(body: &[u8]) -> Option<Vec<Description>> {
    let body = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body);
    let mut reader = Reader::from_reader(body);
    let (mut all, mut current, mut path, mut text) = (Vec::new(), None, Vec::<String>::new(), String::new());
    let mut is_atom = false;
    loop {
        match reader.read_event().ok()? {
            Event::Start(start) => {
                let name = String::from_utf8_lossy(start.local_name().as_ref()).into_owned();
                is_atom |= name == "entry" || name == "feed";
                if name == "entry" {
                    current = Some(Description::default());
                }
                path.push(name);
                text.clear();
            }
            Event::Text(part) => text.push_str(&part.decode().ok()?),
            Event::GeneralRef(reference) => {
                text.push_str(resolve_xml_entity(&reference.decode().ok()?).unwrap_or("\u{FFFD}"));
            }
            Event::End(_) => {
                let name = path.pop()?;
                if name == "entry" {
                    all.extend(current.take());
                } else if let Some(description) = &mut current {
                    description.set(&path, &name, text.trim())?;
                }
                text.clear();
            }
            Event::Eof => return (is_atom && path.is_empty()).then_some(all),
            _ => {}
        }
    }
}

impl Description {
    /// Sets the field of an element; `None` if a count cannot be read.
    fn set(&mut self, path: &[String], name: &str, text: &str) -> Option<()> {
        let parent = path.last().map(String::as_str);
        match name {
            "title" if parent == Some("entry") => text.clone_into(&mut self.name),
            "LockDuration" => self.lock_duration = duration(text),
            "MaxDeliveryCount" => self.max_delivery_count = text.parse().ok(),
            "RequiresDuplicateDetection" => self.detects_duplicates = text == "true",
            "DefaultMessageTimeToLive" => self.time_to_live = duration(text),
            "DeadLetteringOnMessageExpiration" => self.dead_letters_expired = text == "true",
            "AutoDeleteOnIdle" => self.deleted_when_idle = duration(text),
            "ForwardDeadLetteredMessagesTo" => self.forwards_dead_letters = !text.is_empty(),
            "ForwardTo" => self.forwards = !text.is_empty(),
            "EnablePartitioning" => self.is_partitioned = text == "true",
            "EnableExpress" => self.is_express = text == "true",
            "SizeInBytes" => self.size = text.parse().ok(),
            "MaxSizeInMegabytes" => self.max_megabytes = text.parse().ok(),
            "Status" => self.inactive_status = Some(text.to_owned()).filter(|status| status != "Active"),
            "RequiresSession" => self.requires_session = text == "true",
            "DeadLetterMessageCount" if parent == Some("CountDetails") => {
                self.dead_letters = Some(text.parse().ok()?);
            }
            "ActiveMessageCount" | "ScheduledMessageCount" if parent == Some("CountDetails") => {
                self.messages = Some(self.messages.unwrap_or_default().saturating_add(text.parse().ok()?));
            }
            _ => {}
        }
        Some(())
    }
}

fn duration(text: &str) -> Option<Duration> {
    let span: Span = text.parse().ok()?;
    let span = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    Duration::try_from(span).ok()
}

/// Returns the document that creates a queue. The service requires the settings in this order.
pub(super) fn new_queue(new: &NewQueues, max_delivery_count: u32) -> String {
    let NewQueues { lock, duplicates: window, sessions } = new;
    let sessions = if *sessions { "<RequiresSession>true</RequiresSession>" } else { "" };
    let detects = window.map_or("", |_| "<RequiresDuplicateDetection>true</RequiresDuplicateDetection>");
    let window = window.map_or_else(String::new, |window| {
        let seconds = window.as_secs();
        format!("<DuplicateDetectionHistoryTimeWindow>PT{seconds}S</DuplicateDetectionHistoryTimeWindow>")
    });
    format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\
         <entry xmlns=\"http://www.w3.org/2005/Atom\"><content type=\"application/xml\">\
         <QueueDescription xmlns=\"http://schemas.microsoft.com/netservices/2010/10/servicebus/connect\">\
         <LockDuration>PT{}S</LockDuration>{detects}{sessions}{window}<MaxDeliveryCount>{max_delivery_count}</MaxDeliveryCount>\
         </QueueDescription></content></entry>",
        lock.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_is_read_and_other_documents_are_not() {
        let text = "<?xml version=\"1.0\"?><entry xmlns=\"a\"><title type=\"text\">jobs</title><content>\
            <QueueDescription><LockDuration>PT1M5S</LockDuration><MaxDeliveryCount>10</MaxDeliveryCount>\
            <RequiresDuplicateDetection>true</RequiresDuplicateDetection><RequiresSession>true</RequiresSession>\
            <DefaultMessageTimeToLive>P14DT1H</DefaultMessageTimeToLive>\
            <DeadLetteringOnMessageExpiration>true</DeadLetteringOnMessageExpiration>\
            <AutoDeleteOnIdle>P10675199DT2H48M5.4775807S</AutoDeleteOnIdle><ForwardTo>other</ForwardTo>\
            <ForwardDeadLetteredMessagesTo>morgue</ForwardDeadLetteredMessagesTo>\
            <MaxSizeInMegabytes>1024</MaxSizeInMegabytes><SizeInBytes>77</SizeInBytes><Status>SendDisabled</Status>\
            <EnablePartitioning>true</EnablePartitioning><EnableExpress>true</EnableExpress><MessageCount>9</MessageCount>\
            <CountDetails><d:ActiveMessageCount xmlns:d=\"b\">3</d:ActiveMessageCount>\
            <d:DeadLetterMessageCount>4</d:DeadLetterMessageCount>\
            <d:ScheduledMessageCount>2</d:ScheduledMessageCount></CountDetails>\
            </QueueDescription></content></entry>";
        let read = read(text.as_bytes()).unwrap();
        assert_eq!(
            read,
            [Description {
                name: "jobs".to_owned(),
                lock_duration: Some(Duration::from_secs(65)),
                max_delivery_count: Some(10),
                requires_session: true,
                detects_duplicates: true,
                time_to_live: Some(Duration::from_secs(14 * 86_400 + 3600)),
                dead_letters_expired: true,
                // The service's value for "never".
                deleted_when_idle: None,
                forwards: true,
                forwards_dead_letters: true,
                is_partitioned: true,
                is_express: true,
                messages: Some(5),
                dead_letters: Some(4),
                size: Some(77),
                max_megabytes: Some(1024),
                inactive_status: Some("SendDisabled".to_owned()),
                now: None,
            }]
        );
        assert_eq!(super::read(b"<feed></feed>"), Some(Vec::new()));
        assert_eq!(super::read(b"<html>no</html>"), None);
        assert_eq!(super::read(b"<entry>"), None);
        assert_eq!(super::read(b"<entry></entry>").unwrap()[0].messages, None);
        let count = |count| {
            format!(
                "<entry><CountDetails><ActiveMessageCount>{count}</ActiveMessageCount></CountDetails></entry>"
            )
        };
        assert_eq!(super::read(count("7").as_bytes()).unwrap()[0].messages, Some(7));
        assert_eq!(super::read(count("many").as_bytes()), None);
    }
}
