//! The body of a message that is sent: a text, or what another program has put.

use std::borrow::Cow;

use fe2o3_amqp::types::messaging::{Body, Data};
use fe2o3_amqp::types::primitives::Value;

/// The body of a message that is sent.
#[derive(Debug, Clone, Copy)]
pub(super) enum MessageBody<'t> {
    Text(&'t str),
    /// The body of another program's message, which is no text.
    External(&'t Body<Value>),
}

impl<'t> MessageBody<'t> {
    /// Returns the content of a message that came; `None` if its body cannot be decoded.
    pub(super) fn of(text: &'t Result<String, String>, other: Option<&'t Body<Value>>) -> Option<Self> {
        text.as_deref().map(Self::Text).ok().or(other.map(Self::External))
    }

    /// Returns the bytes that a seal covers.
    pub(super) fn bytes(self) -> Cow<'t, [u8]> {
        match self {
            Self::Text(text) => text.as_bytes().into(),
            Self::External(body) => serde_amqp::to_vec(body).unwrap_or_default().into(),
        }
    }

    pub(super) fn body(self) -> Body<Value> {
        match self {
            Self::Text(text) => Data::from(text.as_bytes().to_vec()).into(),
            Self::External(body) => body.clone(),
        }
    }
}
