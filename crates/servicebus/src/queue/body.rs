//! Bodies of messages: a text, or the body of another program's message that is no text.

use std::borrow::Cow;
use std::sync::Arc;

use fe2o3_amqp::types::messaging::{AmqpValue, Body, Data};
use fe2o3_amqp::types::primitives::Value;

/// The body of an outgoing message.
#[derive(Debug, Clone, Copy)]
pub(super) enum MessageBody<'t> {
    Text(&'t str),
    /// A body of another program's message that is no text.
    External(&'t Body<Value>),
}

impl<'t> MessageBody<'t> {
    /// Returns the body of a received message; `None` if it cannot be decoded.
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

/// Returns the text of a body. For a body without a text, returns the reason together with the body itself.
pub(super) fn text_of(body: Body<Value>) -> (Result<String, String>, Option<Arc<Body<Value>>>) {
    let text = match body {
        Body::Data(parts) => {
            let bytes = parts.into_iter().flat_map(|part| part.0.into_vec()).collect();
            String::from_utf8(bytes).map_err(|error| Data::from(error.into_bytes()).into())
        }
        Body::Value(AmqpValue(Value::String(text))) => Ok(text),
        Body::Value(AmqpValue(Value::Binary(bytes))) => String::from_utf8(bytes.into_vec())
            .map_err(|error| Body::Value(AmqpValue(Value::Binary(error.into_bytes().into())))),
        Body::Empty => Ok(String::new()),
        other => Err(other),
    };
    match text {
        Ok(text) => (Ok(text), None),
        Err(body) => (Err("the body is neither UTF-8 nor a text".to_owned()), Some(Arc::new(body))),
    }
}
