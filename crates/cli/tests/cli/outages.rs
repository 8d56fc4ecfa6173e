//! Long-running commands while their storage is unavailable.

use std::io::{self, BufRead, BufReader, Lines, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStderr, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use jobqueue_test_support::postgres::Postgres;

use crate::serve::Served;
use crate::support::Sandbox;

/// An address at which a PostgreSQL server can be reached while the gateway is open.
struct Gateway {
    address: SocketAddr,
    is_open: Arc<AtomicBool>,
    clients: Arc<Mutex<Vec<TcpStream>>>,
}

impl Gateway {
    fn open(address: SocketAddr, server: SocketAddr) -> Self {
        let gateway = Self { address, is_open: Arc::new(true.into()), clients: Arc::default() };
        let listener = TcpListener::bind(gateway.address).unwrap();
        let (is_open, clients) = (Arc::clone(&gateway.is_open), Arc::clone(&gateway.clients));
        thread::spawn(move || {
            for client in listener.incoming().map(Result::unwrap) {
                if is_open.load(Ordering::Acquire) {
                    clients.lock().unwrap().push(client.try_clone().unwrap());
                    relay(client, TcpStream::connect(server).unwrap());
                }
            }
        });
        gateway
    }

    fn close(&self) {
        self.is_open.store(false, Ordering::Release);
        for client in self.clients.lock().unwrap().drain(..) {
            let _ = client.shutdown(Shutdown::Both);
        }
    }
}

fn relay(client: TcpStream, server: TcpStream) {
    for (mut from, mut to) in [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)] {
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}

/// A command that prints repeatedly, and is killed when it is dropped.
struct Watching(Child);

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a server with a queue `mails`, a sandbox whose storage string names an address at which nothing
/// listens yet, and that address.
fn unavailable() -> (Postgres, Sandbox, SocketAddr) {
    let server = Postgres::start(&["fsync=off", "synchronous_commit=off"]);
    let mut sandbox = Sandbox::new();
    sandbox.storage = server.connection_string();
    sandbox.ok(&["queue", "create", "mails"]);
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    sandbox.storage = sandbox.storage.replace(&server.address().to_string(), &address.to_string());
    (server, sandbox, address)
}

fn lines<R: Read>(output: Option<R>) -> Lines<BufReader<R>> {
    BufReader::new(output.unwrap()).lines()
}

// audit 27, operator 5
#[test]
fn storage_that_is_unavailable_at_the_start_is_served_once_it_answers() {
    let (server, sandbox, address) = unavailable();
    let (served, errors): (Served, ChildStderr) = Served::with_errors(&sandbox);
    let page = served.get("/");
    assert!(page.starts_with("HTTP/1.1 503") && page.contains("has been unavailable since"), "{page}");
    assert!(served.get("/metrics").contains("jobqueue_scrape_success 0"));
    assert!(served.get("/live").starts_with("HTTP/1.1 200"));
    let gateway = Gateway::open(address, server.address());
    assert!(lines(Some(errors)).any(|line| line.unwrap() == "the storage is open"));
    let page = served.get("/");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("queues/mails"), "{page}");
    gateway.close();
}

// audit 27, operator 5
#[test]
fn watch_keeps_the_last_figures_while_the_storage_is_unavailable() {
    let (server, sandbox, address) = unavailable();
    let mut command = sandbox.command(&["queues", "--watch", "--interval", "100ms"]);
    let mut watching = Watching(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut errors = lines(watching.0.stderr.take());
    assert!(errors.next().unwrap().unwrap().contains("has been unavailable since"));
    thread::spawn(move || errors.for_each(drop));
    let gateway = Gateway::open(address, server.address());
    let mut list: Lines<BufReader<ChildStdout>> = lines(watching.0.stdout.take());
    let mut until = |text: &str| list.any(|line| line.unwrap().contains(text));
    assert!(until("mails"));
    gateway.close();
    assert!(until("The figures are from 2"));
    assert!(until("mails"), "the last figures stay");
    assert!(watching.0.try_wait().unwrap().is_none());
}
