//! The emulator's control endpoint.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::Value;

/// A client of the control endpoint. It blocks, and opens a connection for each call.
#[derive(Debug)]
pub(super) struct Control {
    port: u16,
}

impl Control {
    pub(super) fn new(port: u16) -> Self {
        Self { port }
    }

    /// Reads something.
    pub(super) fn get(&self, path: &str) -> Value {
        self.call("GET", path, &Value::Null)
    }

    /// Calls the endpoint and returns its answer.
    ///
    /// # Panics
    /// When the emulator cannot be reached or refuses the call.
    pub(super) fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.exchange(method, path, &body).unwrap_or_else(|error| {
            panic!("the emulator of Service Bus does not answer {method} {path}: {error}");
        });
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer of HTTP");
        assert!(head.starts_with("HTTP/1.1 200"), "the emulator refuses {method} {path}: {body}");
        serde_json::from_str(body).expect("an answer in JSON")
    }

    fn exchange(&self, method: &str, path: &str, body: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        write!(
            stream,
            "{method} /{path} HTTP/1.1\r\nhost: control\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}
