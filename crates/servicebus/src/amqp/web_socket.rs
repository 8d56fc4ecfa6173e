//! Carries the bytes of a connection in WebSocket messages.
//!
//! The WebSocket library logs nothing: the bytes contain tokens and payloads.

use std::future::ready;
use std::io;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use reqwest::header::{HeaderValue, SEC_WEBSOCKET_PROTOCOL};
use tokio::io::{AsyncRead, AsyncWrite, join};
use tokio_util::io::{CopyToBytes, SinkWriter, StreamReader};
use tokio_websockets::{ClientBuilder, Message};

const PATH: &str = "/$servicebus/websocket";
const AMQP: HeaderValue = HeaderValue::from_static("amqp");

pub(super) async fn upgrade<S: AsyncRead + AsyncWrite + Send + Unpin>(
    scheme: &str,
    host: &str,
    port: u16,
    socket: S,
) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + use<S>> {
    let address = format!("{scheme}://{host}:{port}{PATH}");
    let client = ClientBuilder::new().uri(&address).map_err(io::Error::other)?;
    let client = client.add_header(SEC_WEBSOCKET_PROTOCOL, AMQP).map_err(io::Error::other)?;
    let (stream, answer) = client.connect_on(socket).await.map_err(io::Error::other)?;
    if answer.headers().get(SEC_WEBSOCKET_PROTOCOL) != Some(&AMQP) {
        return Err(io::Error::other("the peer accepts WebSocket, but not the AMQP subprotocol"));
    }
    let (messages, incoming) = stream.split();
    let reader = StreamReader::new(incoming.filter_map(|message| ready(bytes_of(message))));
    let messages = messages.sink_map_err(io::Error::other);
    let messages = messages.with(|bytes: Bytes| ready(Ok::<_, io::Error>(Message::binary(bytes))));
    Ok(join(reader, SinkWriter::new(CopyToBytes::new(messages))))
}

/// Returns the bytes of a binary message; `None` for a message that only keeps the connection alive.
fn bytes_of(message: Result<Message, tokio_websockets::Error>) -> Option<io::Result<Bytes>> {
    match message {
        Ok(message) => message.is_binary().then(|| Ok(message.into_payload().into())),
        Err(error) => Some(Err(io::Error::other(error))),
    }
}
