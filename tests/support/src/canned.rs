//! A queue service in this process for the clients of the SDK: either as quick as possible, so that only the
//! cost of the client remains, or with a latency on the clock of a test.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use azure_core::http::headers::Headers;
use azure_core::http::{AsyncRawResponse, Body, HttpClient, Method, Request};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

const DATE: &str = "Sat, 21 Nov 2026 00:00:00 GMT";
const ID: &str = "8c5b9c1e-7d1f-4f0a-9d5b-0b6d3f2a1c4e";
const RECEIPT: &str = "AgAAAAMAAAAAAAAAyQf0z3tV2gE=";

/// Keeps messages in memory. A get removes them, so that deletes have nothing to do. It knows only the queue
/// requests that sending, receiving and deleting need.
#[derive(Debug, Default)]
pub struct Canned {
    queues: Mutex<HashMap<String, VecDeque<String>>>,
    counted: Mutex<Counted>,
    latency: Option<(Range<u64>, Mutex<StdRng>)>,
}

/// The number of requests of each kind.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counted {
    /// The puts of messages.
    pub puts: u64,
    /// The gets.
    pub gets: u64,
    /// The deletions.
    pub deletes: u64,
    /// All other requests.
    pub others: u64,
}

impl Counted {
    /// Returns the number of all requests.
    pub fn all(&self) -> u64 {
        self.puts + self.gets + self.deletes + self.others
    }
}

impl Canned {
    /// Returns a service that answers after a latency in milliseconds of tokio's clock, drawn from `seed`.
    #[must_use]
    pub fn with_latency(milliseconds: Range<u64>, seed: u64) -> Self {
        Self { latency: Some((milliseconds, Mutex::new(StdRng::seed_from_u64(seed)))), ..Self::default() }
    }

    /// Returns the requests since the last call.
    pub fn take_counted(&self) -> Counted {
        std::mem::take(&mut self.counted.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl HttpClient for Canned {
    async fn execute_request(&self, request: &Request) -> azure_core::Result<AsyncRawResponse> {
        if let Some((range, random)) = &self.latency {
            let drawn = random.lock().unwrap_or_else(PoisonError::into_inner).random_range(range.clone());
            // Half on the way there, half on the way back.
            tokio::time::sleep(Duration::from_millis(drawn) / 2).await;
            let answered = self.answered(request);
            tokio::time::sleep(Duration::from_millis(drawn) / 2).await;
            return Ok(answered);
        }
        Ok(self.answered(request))
    }
}

impl Canned {
    fn answered(&self, request: &Request) -> AsyncRawResponse {
        self.count(request);
        let (status, body) = self.answer(request);
        let mut headers = Headers::new();
        headers.insert("content-type", "application/xml");
        headers.insert("date", DATE);
        headers.insert("x-ms-request-id", ID);
        headers.insert("x-ms-version", "2021-12-02");
        headers.insert("x-ms-approximate-messages-count", "0");
        if status == 404 {
            headers.insert("x-ms-error-code", "QueueNotFound");
        }
        AsyncRawResponse::from_bytes(status.into(), headers, body)
    }

    fn count(&self, request: &Request) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let of_messages = request.url().path().contains("/messages");
        *match request.method() {
            Method::Post if of_messages => &mut counted.puts,
            Method::Get if of_messages => &mut counted.gets,
            Method::Delete if of_messages => &mut counted.deletes,
            _ => &mut counted.others,
        } += 1;
    }

    fn answer(&self, request: &Request) -> (u16, String) {
        let url = request.url();
        let mut path = url.path_segments().into_iter().flatten().skip(1);
        let (queue, what, id) = (path.next().unwrap_or_default(), path.next(), path.next());
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        match (request.method(), what, id) {
            (Method::Put, None, None) => {
                queues.entry(queue.to_owned()).or_default();
                (201, String::new())
            }
            (Method::Get, None, None) if queues.contains_key(queue) => (200, String::new()),
            (Method::Delete, None, None) if queues.remove(queue).is_some() => (204, String::new()),
            // The permission check at the start expects a refusal for another reason.
            (Method::Post, Some("messages"), None) if parameter(request, "messagettl") == Some(0) => {
                (400, String::new())
            }
            (Method::Post, Some("messages"), None) => match (queues.get_mut(queue), text(request)) {
                (Some(queue), Some(text)) => {
                    queue.push_back(text);
                    (201, list([None].into_iter()))
                }
                _ => (404, String::new()),
            },
            (Method::Get, Some("messages"), None) => match queues.get_mut(queue) {
                Some(queue) => {
                    let most = parameter(request, "numofmessages").unwrap_or(1);
                    (200, list(queue.drain(..most.min(queue.len())).map(Some)))
                }
                None => (404, String::new()),
            },
            (Method::Delete, Some("messages"), Some(ID)) => (204, String::new()),
            _ => (404, String::new()),
        }
    }
}

fn parameter(request: &Request, name: &str) -> Option<usize> {
    let mut pairs = request.url().query_pairs();
    pairs.find(|(found, _)| found == name).and_then(|(_, value)| value.parse().ok())
}

/// Returns the text as it is in the request, with its escapes.
fn text(request: &Request) -> Option<String> {
    let Body::Bytes(body) = request.body() else { return None };
    let body = std::str::from_utf8(body).ok()?;
    let (_, rest) = body.split_once("<MessageText>")?;
    rest.split_once("</MessageText>").map(|(text, _)| text.to_owned())
}

fn list(texts: impl Iterator<Item = Option<String>>) -> String {
    let mut xml = "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><QueueMessagesList>".to_owned();
    for text in texts {
        let _ = write!(
            xml,
            "<QueueMessage><MessageId>{ID}</MessageId><InsertionTime>{DATE}</InsertionTime>\
             <ExpirationTime>Fri, 31 Dec 9999 23:59:59 GMT</ExpirationTime><PopReceipt>{RECEIPT}</PopReceipt>\
             <TimeNextVisible>{DATE}</TimeNextVisible>"
        );
        if let Some(text) = text {
            let _ = write!(xml, "<DequeueCount>1</DequeueCount><MessageText>{text}</MessageText>");
        }
        xml.push_str("</QueueMessage>");
    }
    xml.push_str("</QueueMessagesList>");
    xml
}
