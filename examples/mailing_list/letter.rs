//! One mail to one recipient, as the text that a mail server takes.

use std::io;

use mail_builder::MessageBuilder;
use mail_builder::headers::url::URL;
use uuid::Uuid;

/// Everything that is in the mail; the same however often it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Letter {
    pub(crate) mailing: Uuid,
    pub(crate) recipient: u32,
    pub(crate) list: String,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) subject: String,
    pub(crate) body: String,
    /// The time at which the mailing was due, in seconds since 1970.
    pub(crate) date: i64,
}

impl Letter {
    /// The mail by RFC 5322. Its Message-ID follows from mailing and recipient, so that a mail server that is given
    /// the same mail twice can tell.
    pub(crate) fn to_eml(&self) -> io::Result<Vec<u8>> {
        let Self { mailing, recipient, .. } = self;
        let domain = self.from.split_once('@').map_or("localhost", |(_, domain)| domain);
        MessageBuilder::new()
            .from((self.list.as_str(), self.from.as_str()))
            .to(self.to.as_str())
            .subject(self.subject.as_str())
            .date(self.date)
            .message_id(format!("{mailing}.{recipient}@{domain}"))
            .header(
                "List-Unsubscribe",
                URL::new(format!("mailto:leave@{domain}?subject={mailing}.{recipient}")),
            )
            .text_body(self.body.as_str())
            .write_to_vec()
    }
}
