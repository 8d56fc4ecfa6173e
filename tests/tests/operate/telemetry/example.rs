//! `examples/telemetry`, as its own text says: a request, two jobs, and one trace at the collector.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use jobqueue_tests::example;

use super::otlp::{Receiver, assert_path};

/// The running example. It is killed when dropped.
struct Program(Child);

impl Program {
    fn start(folder: &Path, collector: &str) -> Self {
        let child = Command::new(example::built("telemetry"))
            .env("JOBQUEUE_STORAGE", format!("sqlite:{}", folder.join("jobs.db").display()))
            .env("LISTEN", "127.0.0.1:0")
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector)
            .current_dir(folder)
            .stdout(Stdio::piped())
            .spawn();
        Self(child.unwrap())
    }

    /// Ends the program as Ctrl-C does, and waits for its exports.
    fn stop(mut self) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args(["-s", "INT", &id]).status().unwrap().success());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Orders a book at `http://ADDRESS/orders`; returns the answer.
fn order(url: &str) -> String {
    let (address, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let body = r#"{"item": "book"}"#;
    let headers = format!("Host: {address}\r\nConnection: close\r\nContent-Length: {}", body.len());
    write!(stream, "POST /{path} HTTP/1.1\r\n{headers}\r\nContent-Type: application/json\r\n\r\n{body}")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_example_exports_one_trace_from_a_request_through_two_queues() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start();
    let mut program = Program::start(folder.path(), &receiver.address);
    let mut printed = BufReader::new(program.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let url = printed.next().unwrap();
    let answer = order(url.strip_prefix("orders are taken at ").unwrap());
    assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
    assert_eq!(printed.next().unwrap(), "packed: book");
    assert_eq!(printed.next().unwrap(), "billed: book");
    program.stop();
    let path = ["POST /orders", "send orders", "process orders", "send invoices", "process invoices"];
    assert_path(&receiver.end(), &path);
}
