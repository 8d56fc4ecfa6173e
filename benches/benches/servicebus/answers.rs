//! The answers to settlements, which the client throws away: a stream that reads the incoming dispositions
//! beside it.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use fe2o3_amqp::types::definitions::Role;
use fe2o3_amqp::types::messaging::DeliveryState;
use fe2o3_amqp::types::performatives::Disposition;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

const DISPOSITION: [u8; 3] = [0, 0x53, 0x15];

/// Those who wait for answers, by the number of the delivery.
#[derive(Debug, Clone, Default)]
pub(super) struct Answers(Arc<Mutex<HashMap<u32, oneshot::Sender<DeliveryState>>>>);

impl Answers {
    pub(super) fn watch(&self, delivery: u32) -> oneshot::Receiver<DeliveryState> {
        let (sender, receiver) = oneshot::channel();
        self.0.lock().unwrap().insert(delivery, sender);
        receiver
    }

    fn read(&self, frame: &[u8]) {
        let body = &frame[usize::from(frame[4]) * 4..];
        if !body.starts_with(&DISPOSITION) {
            return;
        }
        let disposition: Disposition = serde_amqp::from_slice(body).unwrap();
        let (Role::Sender, Some(state)) = (disposition.role, disposition.state) else { return };
        let mut waiting = self.0.lock().unwrap();
        for id in disposition.first..=disposition.last.unwrap_or(disposition.first) {
            if let Some(waiter) = waiting.remove(&id) {
                let _ = waiter.send(state.clone());
            }
        }
    }
}

/// A stream that reads along.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) stream: TcpStream,
    pub(super) answers: Answers,
    pub(super) partial: Vec<u8>,
}

impl AsyncRead for Listening {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, answers, partial } = &mut *self;
        let before = buffer.filled().len();
        let read = Pin::new(stream).poll_read(context, buffer);
        partial.extend_from_slice(&buffer.filled()[before..]);
        let mut at = 0;
        while let Some(head) = partial.get(at..at + 8) {
            let is_frame = &head[..4] != b"AMQP";
            let length =
                if is_frame { u32::from_be_bytes(head[..4].try_into().unwrap()) as usize } else { 8 };
            let Some(frame) = partial.get(at..at + length) else { break };
            if is_frame {
                answers.read(frame);
            }
            at += length;
        }
        partial.drain(..at);
        read
    }
}

impl AsyncWrite for Listening {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
