//! The management API over HTTP, which creates, describes, lists and deletes queues. It needs the claim
//! Manage.

mod atom;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use jiff::fmt::rfc2822;
use reqwest::header::DATE;
use reqwest::{Client, Method, StatusCode};

pub(crate) use self::atom::Description;
use super::clock::ServiceClock;
use super::connection_string::Namespace;
use super::error::{Fault, condition};
use super::network::{Answer, Request};
use super::tls::Trust;
use super::token::Credential;

const API_VERSION: &str = "2021-05";
const HTTP_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;
/// A part of the answer 409 while another operation on the entity is in progress.
const OPERATION_IN_PROGRESS: &str = "SubCode=40901";
const PAGE_SIZE: usize = 100;
/// The service's maximum number of deliveries; the framework's own limit is reached earlier.
pub(crate) const MAX_DELIVERY_COUNT: u32 = 2000;

#[derive(Debug, Clone, Copy)]
pub(crate) struct NewQueues {
    pub(crate) lock: Duration,
    /// The window of duplicate detection; `None` without detection.
    pub(crate) duplicates: Option<Duration>,
    pub(crate) sessions: bool,
}

pub(crate) struct Entities {
    namespace: Arc<Namespace>,
    credential: Arc<Credential>,
    trust: Trust,
    new: NewQueues,
    clock: Arc<ServiceClock>,
    client: OnceLock<Client>,
}

jobqueue_storage::debug_fields! {
    Entities(namespace.host)
}

impl Entities {
    pub(crate) fn new(
        namespace: Arc<Namespace>,
        credential: Arc<Credential>,
        trust: Trust,
        new: NewQueues,
        clock: Arc<ServiceClock>,
    ) -> Self {
        Self { namespace, credential, trust, new, clock, client: OnceLock::new() }
    }

    pub(crate) fn creates_sessions(&self) -> bool {
        self.new.sessions
    }

    /// Returns whether answers have the service's time. Those of a simulation have none.
    pub(crate) fn shows_time(&self) -> bool {
        self.namespace.network.is_none()
    }

    /// Creates a queue; returns `false` if a queue of that name exists. A conflict alone does not prove that:
    /// it is also the answer for a queue that is being deleted, sometimes without its sub-code.
    pub(crate) async fn create(&self, queue: &str) -> Result<bool, Fault> {
        let document = atom::new_queue(&self.new, MAX_DELIVERY_COUNT);
        let (status, body, _) = self.send(Method::PUT, queue, &[], Some(document)).await?;
        let is_conflict = status == StatusCode::CONFLICT && !detail(&body).contains(OPERATION_IN_PROGRESS);
        if is_conflict && self.describe(queue).await?.is_some() {
            return Ok(false);
        }
        let is_created = status.is_success() && !read(&body)?.is_empty();
        if is_created { Ok(true) } else { Err(refused(status, &body)) }
    }

    /// Deletes a queue; returns `false` if the management API reports that there is none.
    pub(crate) async fn delete(&self, queue: &str) -> Result<bool, Fault> {
        match self.send(Method::DELETE, queue, &[], None).await? {
            (status, body, _) if status.is_success() && body.is_empty() => Ok(true),
            (StatusCode::NOT_FOUND, body, _) if is_refusal(&body) => Ok(false),
            (status, body, _) => Err(refused(status, &body)),
        }
    }

    /// Describes a queue; `None` if the management API reports that there is none.
    pub(crate) async fn describe(&self, queue: &str) -> Result<Option<Description>, Fault> {
        match self.send(Method::GET, queue, &[], None).await? {
            (status, body, now) if status.is_success() => {
                let description = read(&body)?.into_iter().next();
                Ok(description.map(|description| Description { now, ..description }))
            }
            (StatusCode::NOT_FOUND, body, _) if is_refusal(&body) => Ok(None),
            (status, body, _) => Err(refused(status, &body)),
        }
    }

    pub(crate) async fn all(&self) -> Result<Vec<Description>, Fault> {
        let mut all = Vec::new();
        loop {
            let page = [("$skip", all.len().to_string()), ("$top", PAGE_SIZE.to_string())];
            let (status, body, _) = self.send(Method::GET, "$Resources/queues", &page, None).await?;
            if !status.is_success() {
                return Err(refused(status, &body));
            }
            let found = read(&body)?;
            let count = found.len();
            all.extend(found);
            if count < PAGE_SIZE {
                return Ok(all);
            }
        }
    }

    /// Sends a request; returns the status, the body and the service's time, which the clock takes over.
    async fn send(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, String)],
        document: Option<String>,
    ) -> Result<(StatusCode, Vec<u8>, Option<SystemTime>), Fault> {
        let base = self.namespace.http();
        let mut url = url::Url::parse(&format!("{base}/{path}")).map_err(Fault::not_sent)?;
        url.query_pairs_mut().append_pair("api-version", API_VERSION).extend_pairs(query);
        let token = self.credential.header(&format!("{base}/{path}")).await?;
        if let Some(network) = &self.namespace.network {
            let target = url.as_str().strip_prefix(&base).unwrap_or_default();
            let request =
                Request { method: method.as_str(), target, token: &token, body: document.as_deref() };
            let Answer { status, body } = network.request(&request).map_err(Fault::not_sent)?;
            return Ok((StatusCode::from_u16(status).map_err(Fault::not_sent)?, body, None));
        }
        let request =
            self.client().await?.request(method, url).header("authorization", token).timeout(HTTP_TIMEOUT);
        let request = match document {
            Some(text) => request.header("content-type", "application/atom+xml").body(text),
            None => request,
        };
        let sent = self.clock.moment();
        let mut answer = request.send().await.map_err(lost)?;
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(lost)? {
            if body.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err(Fault::unreadable("the answer is too large"));
            }
            body.extend_from_slice(&chunk);
        }
        let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok()).and_then(http_date);
        if let Some(date) = date
            && is_of_the_service(answer.status(), &body)
        {
            self.clock.note(sent, date);
        }
        Ok((answer.status(), body, date))
    }

    async fn client(&self) -> Result<&Client, Fault> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let mut builder = Client::builder()
            // A redirect would send the token to the host that the answer names.
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(10))
            .referer(false)
            .http1_only();
        let config = if self.namespace.tls {
            builder = builder.https_only(true);
            self.trust.config().await
        } else {
            // Requests to an emulator bypass proxies. Node closes idle connections after 5 seconds.
            builder = builder.no_proxy().pool_idle_timeout(Duration::from_secs(4));
            Trust::without_roots()
        };
        let config = config.map_err(Fault::not_sent)?;
        let client = builder.tls_backend_preconfigured(config).build().map_err(Fault::not_sent)?;
        Ok(self.client.get_or_init(|| client))
    }
}

fn read(body: &[u8]) -> Result<Vec<Description>, Fault> {
    atom::read(body).ok_or_else(|| Fault::unreadable("the answer is not an Atom document"))
}

fn http_date(text: &str) -> Option<SystemTime> {
    rfc2822::DateTimeParser::new().parse_timestamp(text.trim()).ok().map(Into::into)
}

/// Returns whether an answer comes from the service, and not from a gateway in between.
fn is_of_the_service(status: StatusCode, body: &[u8]) -> bool {
    let has_result = || status.is_success() && (body.is_empty() || read(body).is_ok());
    is_refusal(body) || has_result()
}

/// Returns whether an answer is the service's own refusal. A gateway in between, such as a load balancer or a
/// proxy, answers with its own page.
fn is_refusal(body: &[u8]) -> bool {
    !detail(body).is_empty()
}

fn refused(status: StatusCode, body: &[u8]) -> Fault {
    if status.is_success() || status == StatusCode::NOT_FOUND && !is_refusal(body) {
        return Fault::Doubtful(format!("status {status} with an unexpected body"));
    }
    let is_busy = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let condition = is_busy.then(|| condition::MANAGEMENT_BUSY.to_owned());
    // Callers check for a missing queue before they call this.
    Fault::of_answer(i32::from(status.as_u16()), condition, detail(body))
}

fn detail(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let detail = text.split_once("<Detail>").and_then(|(_, rest)| rest.split_once("</Detail>"));
    detail.map_or_else(String::new, |(detail, _)| detail.chars().take(300).collect())
}

fn lost(error: reqwest::Error) -> Fault {
    let error = error.without_url();
    match &error {
        error if error.is_connect() => Fault::not_sent(error),
        error if error.is_timeout() => Fault::Late,
        error => Fault::lost(error),
    }
}
