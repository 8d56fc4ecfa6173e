//! A proxy between a client and Azurite that loses, delays, truncates or garbles answers.
//!
//! The proxy understands just enough of HTTP/1.1 to know where a request ends. It opens a new connection to
//! the server for each exchange, so that an answer ends with its connection.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// A fault of one exchange.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The request is not forwarded, and the connection closes.
    Refuse,
    /// The request is performed, and the connection closes without an answer.
    DropAnswer,
    /// The request is performed, and the answer never arrives.
    Hang,
    /// The request is performed, and only this number of bytes of the answer arrives.
    Truncate(usize),
    /// The request is performed. The answer keeps its head, and its body becomes garbage of the same length.
    Garble,
    /// The request is not forwarded. This is the answer, byte for byte.
    Answer(Vec<u8>),
    /// Like `Answer`, followed by this piece repeatedly until the client disconnects.
    Endless(Vec<u8>, Vec<u8>),
    /// The request is performed. In the whole answer, the first text is replaced by the second.
    Replace(String, String),
}

/// A text that must occur in the first line of the request (`PUT /account/queue?… HTTP/1.1`), and the fault.
type Plan = (String, Fault);

/// A running proxy, which stops with the runtime.
#[derive(Debug, Clone)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    upstream: String,
    plans: Mutex<VecDeque<Plan>>,
    /// The fault of every request without a plan, if any.
    outage: Mutex<Option<Fault>>,
    seen: Mutex<Vec<String>>,
}

impl Proxy {
    /// Starts a proxy in front of `endpoint` (`http://127.0.0.1:PORT/…`).
    pub async fn start(endpoint: &str) -> Self {
        let url = url::Url::parse(endpoint).expect("an endpoint");
        let upstream = format!("{}:{}", url.host_str().expect("a host"), url.port().expect("a port"));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(State {
            upstream,
            plans: Mutex::default(),
            outage: Mutex::default(),
            seen: Mutex::default(),
        });
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                // A client that disconnects is not a failure of the proxy.
                tokio::spawn(async move { state.serve(client).await.ok() });
            }
        });
        Self { address, state }
    }

    /// Returns the endpoint with the address of the proxy.
    pub fn endpoint(&self, endpoint: &str) -> String {
        let mut url = url::Url::parse(endpoint).expect("an endpoint");
        url.set_port(Some(self.address.port())).expect("a URL with a port");
        url.into()
    }

    /// Plans a fault for the next request whose first line contains `part`. Each plan is used once, in order.
    pub fn plan(&self, part: &str, fault: Fault) {
        self.state.plans.lock().expect("no panic").push_back((part.to_owned(), fault));
    }

    /// Applies `fault` to every request, until this is called with `None`.
    pub fn outage(&self, fault: Option<Fault>) {
        *self.state.outage.lock().expect("no panic") = fault;
    }

    /// Returns the first line of each request so far, followed by its range if it has one.
    pub fn seen(&self) -> Vec<String> {
        self.state.seen.lock().expect("no panic").clone()
    }

    /// Returns the number of requests so far whose first line contains `part`.
    pub fn count(&self, part: &str) -> usize {
        self.seen().iter().filter(|line| line.contains(part)).count()
    }
}

impl State {
    async fn serve(&self, mut client: TcpStream) -> io::Result<()> {
        let Some(request) = read_request(&mut client).await? else { return Ok(()) };
        let text = String::from_utf8_lossy(&request);
        let line = text.lines().next().unwrap_or_default().to_owned();
        // Also records the range of a read.
        let head = text.lines().take_while(|line| !line.is_empty());
        let range = head.filter(|line| line.to_ascii_lowercase().starts_with("range:"));
        let seen = [line.as_str()].into_iter().chain(range).collect::<Vec<_>>().join(" ");
        self.seen.lock().expect("no panic").push(seen);
        let fault = {
            let mut plans = self.plans.lock().expect("no panic");
            let at = plans.iter().position(|(part, _)| line.contains(part));
            at.and_then(|at| plans.remove(at)).map(|(_, fault)| fault)
        };
        let fault = fault.or_else(|| self.outage.lock().expect("no panic").clone());
        match fault {
            Some(Fault::Refuse) => return Ok(()),
            Some(Fault::Answer(answer)) => return client.write_all(&answer).await,
            Some(Fault::Endless(head, piece)) => {
                client.write_all(&head).await?;
                loop {
                    client.write_all(&piece).await?;
                }
            }
            _ => {}
        }
        let answer = self.forward(&request).await?;
        match fault {
            Some(Fault::DropAnswer) => Ok(()),
            Some(Fault::Hang) => {
                // Waits until the client gives up.
                client.read(&mut [0; 1]).await.map(drop)
            }
            Some(Fault::Truncate(bytes)) => client.write_all(&answer[..bytes.min(answer.len())]).await,
            Some(Fault::Garble) => client.write_all(&garbled(answer)).await,
            Some(Fault::Replace(from, to)) => {
                let text = String::from_utf8_lossy(&answer);
                assert!(text.contains(&from), "nothing to replace in {text}");
                client.write_all(unframed(&text.replace(&from, &to)).as_bytes()).await
            }
            _ => client.write_all(&answer).await,
        }
    }

    async fn forward(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        let mut server = TcpStream::connect(&self.upstream).await?;
        let end = head_end(request).unwrap_or(request.len());
        server.write_all(&request[..end - 2]).await?;
        server.write_all(b"connection: close\r\n\r\n").await?;
        server.write_all(&request[end..]).await?;
        let mut answer = Vec::new();
        server.read_to_end(&mut answer).await?;
        Ok(answer)
    }
}

/// Reads one request, head and body, or returns `None` if the client closes the connection.
async fn read_request(client: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut request = Vec::new();
    loop {
        if client.read_buf(&mut request).await? == 0 {
            return Ok(None);
        }
        let Some(end) = head_end(&request) else { continue };
        let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.and_then(|length| length.trim().parse().ok()).unwrap_or_default();
        if request.len() >= end + length {
            return Ok(Some(request));
        }
    }
}

/// Returns the position at which the body begins.
fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

fn garbled(mut answer: Vec<u8>) -> Vec<u8> {
    let end = head_end(&answer).unwrap_or(answer.len());
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    if head.contains("transfer-encoding: chunked") {
        // Removes the framing, so that the body lasts until the connection closes.
        let head = unframed(&String::from_utf8_lossy(&answer[..end]));
        return [head.as_bytes(), b"\xFF\x00<<not xml>>"].concat();
    }
    answer[end..].fill(b'?');
    answer
}

/// Returns the answer without framing: the end of the connection delimits its body, so that its length may
/// change. A short answer of Azurite has a single chunk, whose size lines are removed.
fn unframed(answer: &str) -> String {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let framing = |line: &&str| {
        let line = line.to_ascii_lowercase();
        !line.starts_with("content-length:") && !line.starts_with("transfer-encoding:")
    };
    let head: Vec<_> = head.split("\r\n").filter(framing).collect();
    let body =
        if chunked { body.split("\r\n").skip(1).step_by(2).collect::<String>() } else { body.to_owned() };
    format!("{}\r\nconnection: close\r\n\r\n{body}", head.join("\r\n").trim_end())
}
