//! A server for tests that accepts every login, and gives the answers of the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::settings::{Settings, Tls};
use jobqueue_storage::runtime::Runtime;

/// Returns the answer to a message of this type. An empty answer is not sent.
type AnswerFn = dyn Fn(u8) -> Vec<u8> + Send + Sync;

/// The code at the start of a connection that asks to cancel a statement.
const CANCEL_REQUEST_CODE: [u8; 4] = 80_877_102_u32.to_be_bytes();

/// A server on this machine. Its connections end with the runtime.
pub(crate) struct FakeServer {
    port: u16,
    cancels: UnboundedReceiver<usize>,
}

/// The number of open sessions, and the channel to which each request to cancel sends it.
struct Sessions {
    open: AtomicUsize,
    cancelled: UnboundedSender<usize>,
}

impl FakeServer {
    /// Starts a server that answers each round trip with the result of `answer`.
    pub(crate) async fn start(answer: impl Fn(u8) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer: Arc<AnswerFn> = Arc::new(answer);
        let (cancelled, cancels) = unbounded_channel();
        let sessions = Arc::new(Sessions { open: AtomicUsize::new(0), cancelled });
        let runtime = Runtime::new();
        runtime.clone().spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                runtime.spawn(accept(stream, Arc::clone(&answer), Arc::clone(&sessions)));
            }
        });
        Self { port, cancels }
    }

    /// Starts a server that answers no statement. The receiver gets an item for each round trip that the
    /// server has read.
    pub(crate) async fn silent() -> (Self, UnboundedReceiver<()>) {
        let (sent, arrived) = unbounded_channel();
        let read = move |_| {
            sent.send(()).unwrap();
            Vec::new()
        };
        (Self::start(read).await, arrived)
    }

    /// Starts a server that refuses each login as PgBouncer does.
    pub(crate) async fn refusing(text: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, (_, cancels)) = (listener.local_addr().unwrap().port(), unbounded_channel());
        Runtime::new().spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                if read_body(&mut stream).await.is_some() {
                    let refusal = format!("SFATAL\0C08P01\0M{text}\0\0");
                    drop(stream.write_all(&message(b'E', refusal.as_bytes())).await);
                }
            }
        });
        Self { port, cancels }
    }

    /// Waits for a request to cancel a statement. Returns the number of sessions that were open when it came.
    pub(crate) async fn cancelled(&mut self) -> usize {
        self.cancels.recv().await.unwrap()
    }

    /// Returns the settings of a client.
    pub(crate) fn settings(&self) -> Settings {
        let text = format!("postgres://u@127.0.0.1:{}/d?sslmode=disable", self.port);
        Settings {
            config: text.parse().unwrap(),
            tls: Tls::Unchecked,
            passwords: None,
            sends_tokens: false,
            schema: "jobqueue".to_owned(),
            max_connections: 1,
            timeout: std::time::Duration::from_secs(10),
            description: "fake".to_owned(),
        }
    }
}

async fn accept(mut stream: TcpStream, answer: Arc<AnswerFn>, sessions: Arc<Sessions>) -> Option<()> {
    if read_body(&mut stream).await?.starts_with(&CANCEL_REQUEST_CODE) {
        return sessions.cancelled.send(sessions.open.load(Ordering::SeqCst)).ok();
    }
    sessions.open.fetch_add(1, Ordering::SeqCst);
    let served = serve(stream, answer).await;
    sessions.open.fetch_sub(1, Ordering::SeqCst);
    served
}

/// Serves a session until it is closed or a message is malformed.
async fn serve(mut stream: TcpStream, answer: Arc<AnswerFn>) -> Option<()> {
    stream.write_all(&[message(b'R', &[0; 4]), ready()].concat()).await.ok()?;
    loop {
        let kind = stream.read_u8().await.ok()?;
        read_body(&mut stream).await?;
        // After `Sync` or a simple query the client waits for an answer.
        if matches!(kind, b'S' | b'Q') {
            let answer = answer(kind);
            if !answer.is_empty() {
                stream.write_all(&answer).await.ok()?;
            }
        }
    }
}

async fn read_body(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let length = stream.read_u32().await.ok()?.checked_sub(4)?;
    let mut body = vec![0; usize::try_from(length).ok()?];
    stream.read_exact(&mut body).await.ok()?;
    Some(body)
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    [&[kind][..], &length, body].concat()
}

fn ready() -> Vec<u8> {
    message(b'Z', b"I")
}

/// Returns an error message, after which the server accepts the next statement.
pub(crate) fn error_response(severity: &str, code: &str) -> Vec<u8> {
    let body = format!("S{severity}\0V{severity}\0C{code}\0Mno\0\0");
    [message(b'E', body.as_bytes()), ready()].concat()
}
