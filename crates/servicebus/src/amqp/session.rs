//! Links that hold a session of a queue: the attach requests a session, and its answer names it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fe2o3_amqp::Receiver;
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::types::definitions::{Fields, ReceiverSettleMode, SenderSettleMode};
use fe2o3_amqp::types::messaging::Source;
use fe2o3_amqp::types::primitives::{Symbol, Value};

use super::super::error::Fault;
use super::channel::{Channel, of_receiver};
use super::receiver::ReceiveLink;
use super::values::REQUEST_TIMEOUT;

const SESSION_FILTER: &str = "com.microsoft:session-filter";
const TIMEOUT_PROPERTY: &str = "com.microsoft:timeout";

/// An accepted session, with the link that holds it. The session is free again when the link ends.
#[derive(Debug)]
pub(crate) struct AcceptedSession {
    pub(crate) id: String,
    pub(crate) link: ReceiveLink,
    /// The end of the session's lock, if the service returns it.
    pub(crate) locked_until: Option<SystemTime>,
}

impl AcceptedSession {
    pub(super) async fn attach(channel: &Arc<Channel>, address: &str, wait: Duration) -> Result<Self, Fault> {
        let address = address.to_owned();
        let attaching = channel.attach(wait + REQUEST_TIMEOUT, move |session, name| {
            let next_free = Source::builder()
                .address(address.as_str())
                .add_to_filter_using_legacy_format(SESSION_FILTER, Value::Null);
            let mut properties = Fields::new();
            let wait = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
            properties.insert(Symbol::from(TIMEOUT_PROPERTY), Value::Uint(wait));
            let receiver = Receiver::builder()
                .name(name)
                .source(next_free.build())
                .properties(properties)
                // The source in the answer differs, because it names the session.
                .verify_incoming_source(false)
                .sender_settle_mode(SenderSettleMode::Unsettled)
                .receiver_settle_mode(ReceiverSettleMode::Second)
                .credit_mode(CreditMode::Manual);
            Box::pin(async move { receiver.attach(session).await.map_err(|error| of_receiver(&error)) })
        });
        let receiver = attaching.await?;
        let id =
            id_of(&receiver).ok_or_else(|| Fault::unreadable("the answer to an attach names no session"))?;
        let key = channel.events.find(receiver.name());
        let locked_until = key.and_then(|key| channel.events.link(key).locked_until);
        let link = ReceiveLink::of(receiver, channel, Arc::default())?;
        Ok(Self { id, link, locked_until })
    }
}

fn id_of(receiver: &Receiver) -> Option<String> {
    match receiver.source().as_ref()?.filter.as_ref()?.get(&Symbol::from(SESSION_FILTER))? {
        Value::String(id) => Some(id.clone()),
        Value::Described(described) => match &described.value {
            Value::String(id) => Some(id.clone()),
            _ => None,
        },
        _ => None,
    }
}
