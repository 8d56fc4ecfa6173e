//! A proxy that counts requests: passes on all bytes unchanged, and records the first line of each request.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use jobqueue_bench_harness::{Result, nanos_now};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use url::Url;

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// The time at which its head had arrived.
    pub(crate) at: Instant,
    /// The same time by the clock that processes share.
    pub(crate) nanos: u64,
    /// Method and target, without the version.
    pub(crate) line: String,
}

impl Seen {
    /// Returns whether the request asks for messages.
    pub(crate) fn is_get(&self) -> bool {
        self.line.starts_with("GET ") && self.line.contains("/messages") && !self.line.contains("peekonly")
    }
}

/// Requests to queues and blobs, in the order of their arrival.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Seen>>>);

impl Log {
    /// Starts a proxy before `endpoint` and returns its address. It stops with the runtime.
    pub(crate) async fn before(&self, endpoint: &str) -> Result<String> {
        let mut url = Url::parse(endpoint)?;
        let upstream = url.socket_addrs(|| None)?.into_iter().next().ok_or("no address")?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        url.set_port(Some(listener.local_addr()?.port())).map_err(|()| "a URL without a port")?;
        let log = self.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let log = log.clone();
                // A client that hangs up ends the exchange; that is not a failure of the proxy.
                tokio::spawn(async move { log.serve(client, upstream).await.ok() });
            }
        });
        Ok(url.to_string().trim_end_matches('/').to_owned())
    }

    /// Returns all requests so far, and forgets them.
    pub(crate) fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen())
    }

    fn seen(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(&self, client: TcpStream, upstream: SocketAddr) -> Result<()> {
        let server = TcpStream::connect(upstream).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, mut to_client) = client.into_split();
        let (mut from_server, to_server) = server.into_split();
        let answers = async { Ok(tokio::io::copy(&mut from_server, &mut to_client).await.map(drop)?) };
        tokio::select! {
            done = self.requests(from_client, to_server) => done,
            done = answers => done,
        }
    }

    async fn requests(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> Result<()> {
        let mut buffer: Vec<u8> = Vec::with_capacity(16 << 10);
        loop {
            let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
            else {
                if from.read_buf(&mut buffer).await? == 0 {
                    return Ok(());
                }
                continue;
            };
            let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
            let line = head.lines().next().unwrap_or_default().trim_end_matches(" HTTP/1.1").to_owned();
            self.seen().push(Seen { at: Instant::now(), nanos: nanos_now(), line });
            let mut body = end + body_length(&head)?;
            loop {
                let piece = buffer.len().min(body);
                to.write_all(&buffer[..piece]).await?;
                buffer.drain(..piece);
                body -= piece;
                if body == 0 {
                    break;
                }
                if from.read_buf(&mut buffer).await? == 0 {
                    return Ok(());
                }
            }
        }
    }
}

fn body_length(head: &str) -> Result<usize> {
    let head = head.to_ascii_lowercase();
    if head.contains("\r\ntransfer-encoding:") {
        return Err("a request in chunks, of which the proxy knows nothing".into());
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    Ok(length.map_or(Ok(0), |length| length.trim().parse())?)
}
