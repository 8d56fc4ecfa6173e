//! One mail to one recipient, in the format of mail servers.

use std::io;

use mail_builder::MessageBuilder;
use mail_builder::headers::url::URL;
use uuid::Uuid;

/// The content of a mail. It is the same however often it is made.
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
    /// Returns the mail in the format of RFC 5322. Its Message-ID follows from mailing and recipient, so that
    /// a mail server recognises a mail that it receives twice.
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
