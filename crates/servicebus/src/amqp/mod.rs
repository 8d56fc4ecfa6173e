//! AMQP: connections, links and requests. Knows neither queues nor messages of the port.

mod channel;
mod close_detector;
pub(super) mod connection;
mod credit;
mod frame_inspector;
mod links;
pub(super) mod nesting;
mod receive_task;
pub(super) mod receiver;
pub(super) mod requests;
pub(super) mod sender;
pub(super) mod session;
pub(super) mod settlement;
mod stream;
mod transaction;
mod values;
mod web_socket;

pub(super) use links::{Links, LiveConnection, OpenLink};
pub(super) use values::{GET_WAIT, Incoming, Outbound, encode, field, instant, map, millis};
