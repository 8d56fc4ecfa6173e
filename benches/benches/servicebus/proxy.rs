//! A proxy that counts frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Passes bytes on to a port, and counts frames; those without a body are left out. Returns its own port.
pub(super) async fn counting_proxy(port: u16) -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (own, frames) = (listener.local_addr().unwrap().port(), Arc::<AtomicU64>::default());
    let counted = Arc::clone(&frames);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            client.set_nodelay(true).unwrap();
            server.set_nodelay(true).unwrap();
            let ((client_in, client_out), (server_in, server_out)) =
                (client.into_split(), server.into_split());
            tokio::spawn(pass(client_in, server_out, Arc::clone(&counted)));
            tokio::spawn(pass(server_in, client_out, Arc::clone(&counted)));
        }
    });
    (own, frames)
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, frames: Arc<AtomicU64>) {
    let (mut bytes, mut partial) = (vec![0; 65_536], Vec::new());
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
        partial.extend_from_slice(&bytes[..count]);
        let mut at = 0;
        while let Some(head) = partial.get(at..at + 8) {
            let is_frame = &head[..4] != b"AMQP";
            let length =
                if is_frame { u32::from_be_bytes(head[..4].try_into().unwrap()) as usize } else { 8 };
            if partial.len() < at + length {
                break;
            }
            frames.fetch_add(u64::from(is_frame && length > 8), Ordering::Relaxed);
            at += length;
        }
        partial.drain(..at);
    }
}
