//! AMQP: connections, links and requests, without knowledge of queues and messages of the port.

pub(super) mod connection;
mod credit;
mod farewell;
mod links;
mod receive_task;
pub(super) mod receiver;
pub(super) mod requests;
pub(super) mod sender;
pub(super) mod session;
pub(super) mod settlement;
mod stream;
mod tap;
mod transaction;
mod values;
mod web_socket;

pub(super) use links::Links;
#[cfg(feature = "testing")]
pub use stream::Socket;
pub(super) use values::{Incoming, encode, field, map};
