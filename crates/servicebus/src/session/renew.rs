//! Renews the locks of sessions.

use std::time::{Duration, SystemTime};

use fe2o3_amqp::types::primitives::Value;

use super::super::amqp::requests::{Node, Request};
use super::super::amqp::{field, map};
use super::super::error::Fault;
use super::held::Session;

/// Renews the lock of a session and notes its new end, which it returns.
pub(crate) async fn renew(node: &Node, session: &Session) -> Result<SystemTime, Fault> {
    let request = Request {
        operation: "com.microsoft:renew-session-lock",
        properties: vec![("associated-link-name", session.link_name().to_owned())],
        body: map([("session-id", Value::String(session.id().to_owned()))]),
    };
    let answer = node.call(request).await?;
    let unreadable = || Fault::Unreadable("the answer lacks the end of the session's lock".to_owned());
    let until = match answer.as_ref().and_then(|answer| field(answer, "expiration")) {
        Some(Value::Timestamp(until)) => u64::try_from(until.milliseconds()).map_err(|_| unreadable())?,
        _ => return Err(unreadable()),
    };
    let until = SystemTime::UNIX_EPOCH + Duration::from_millis(until);
    session.renewed(until);
    Ok(until)
}
