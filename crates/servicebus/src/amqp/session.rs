//! Links that hold a session of a queue.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::super::error::Fault;
use super::connection::Connection;
use super::receiver::ReceiveLink;
use super::session_attach::id_of;

/// A session that was accepted, with the link that holds it: the session is free again when the link ends.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) id: String,
    pub(crate) link: ReceiveLink,
    /// The name of the link, which requests about the session carry.
    pub(crate) link_name: String,
    /// The end of the session's lock, if the service returns it.
    pub(crate) locked_until: Option<SystemTime>,
}

impl Accepted {
    /// Waits for the next free session with messages, up to `wait`.
    pub(super) async fn attach(
        connection: &Connection,
        address: &str,
        wait: Duration,
    ) -> Result<Self, Fault> {
        let receiver = connection.session_receiver(address, wait).await?;
        let id = id_of(&receiver)
            .ok_or_else(|| Fault::Unreadable("the answer to an attach names no session".to_owned()))?;
        let link_name = receiver.name().to_owned();
        let locked_until = connection.events.locked_until(&link_name);
        let link = ReceiveLink::of(receiver, connection, Arc::default());
        Ok(Self { id, link, link_name, locked_until })
    }
}
