//! The least that the client can do: receives a message and completes it, one after the other.
//!
//! It reads no body, runs no handler beside the loop, renews no lock, and does not learn whether a message
//! was completed.

use std::time::{Duration, Instant};

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::definitions::{ReceiverSettleMode, SenderSettleMode};
use fe2o3_amqp::types::messaging::Body;
use fe2o3_amqp::types::primitives::Value;
use fe2o3_amqp::{Connection, Receiver, Session};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::{QUEUE, SLOTS};

/// Receives and completes `jobs` messages.
pub(super) async fn run(port: u16, jobs: u64) -> Duration {
    let (mut connection, mut session) = open(tcp(port).await).await;
    let mut receiver = receiver(&mut session).await;
    let began = Instant::now();
    for _ in 0..jobs {
        let delivery = receiver.recv::<Body<Value>>().await.unwrap();
        receiver.accept(&delivery).await.unwrap();
    }
    receiver.close().await.unwrap();
    let took = began.elapsed();
    session.end().await.unwrap();
    connection.close().await.unwrap();
    took
}

pub(super) async fn tcp(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

pub(super) async fn open(
    stream: impl AsyncRead + AsyncWrite + std::fmt::Debug + Send + Unpin + 'static,
) -> (ConnectionHandle<()>, SessionHandle<()>) {
    let connection = Connection::builder()
        .container_id("bench")
        .hostname("127.0.0.1")
        .scheme("amqp")
        .max_frame_size(65_536_u32)
        .sasl_profile(SaslProfile::Anonymous);
    let mut connection = connection.open_with_stream(stream).await.unwrap();
    let session = Session::begin(&mut connection).await.unwrap();
    (connection, session)
}

/// Attaches a link by which messages come under locks, as many as there are slots.
pub(super) async fn receiver(session: &mut SessionHandle<()>) -> Receiver {
    let receiver = Receiver::builder()
        .name("messages")
        .source(QUEUE)
        .sender_settle_mode(SenderSettleMode::Unsettled)
        .receiver_settle_mode(ReceiverSettleMode::Second)
        .credit_mode(CreditMode::Auto(SLOTS));
    receiver.attach(session).await.unwrap()
}
