//! Serves HTTP/1.1 with a limit for the head of a request, which `axum::serve` does not have.

use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::serve::Listener;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The time for which a connection waits for the head of its next request. Without a limit, clients that send
/// half a head would use up the descriptors of the process. The limit is longer than the minute for which
/// load balancers and proxies keep an idle connection, on which they may still send.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// Serves requests until `stop` fires, and then finishes the requests that have begun.
pub(crate) async fn serve(mut listener: TcpListener, router: Router, stop: &CancellationToken) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let connections = GracefulShutdown::new();
    loop {
        let (stream, peer) = tokio::select! {
            // Sleeps for a second if a connection cannot be accepted.
            accepted = Listener::accept(&mut listener) => accepted,
            () = stop.cancelled() => break,
        };
        // The dashboard logs the address of a refused login.
        let service = TowerToHyperService::new(router.clone().layer(Extension(ConnectInfo(peer))));
        let connection = http.serve_connection(TokioIo::new(stream), service);
        // An error is the client's: it has closed the connection, or does not send HTTP.
        tokio::spawn(connections.watch(connection));
    }
    drop(listener);
    connections.shutdown().await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn incomplete_head_does_not_keep_a_connection_open() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            serve(listener, Router::new(), &CancellationToken::new()).await;
        });
        let whole = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        for sent in ["", "GET / HTTP/1.1\r\nHost: ", whole] {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(sent.as_bytes()).await.unwrap();
            let mut answer = String::new();
            let end = timeout(2 * HEAD_TIMEOUT, client.read_to_string(&mut answer)).await;
            assert!(end.is_ok(), "after {sent:?} the connection stays open");
            assert_eq!(answer.starts_with("HTTP/1.1 404"), sent == whole, "{answer}");
        }
        server.abort();
    }
}
