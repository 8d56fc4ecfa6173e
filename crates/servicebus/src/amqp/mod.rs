//! AMQP: connections, links and requests, without knowledge of queues and messages of the port.

mod close_detector;
pub(super) mod connection;
mod credit;
mod frame_inspector;
mod links;
mod receive_task;
pub(super) mod receiver;
pub(super) mod requests;
pub(super) mod sender;
pub(super) mod session;
mod session_attach;
pub(super) mod settlement;
mod stream;
mod transaction;
mod values;
mod web_socket;

pub(super) use links::Links;
pub(super) use values::{Incoming, encode, field, map};
