//! The sources of Entra ID tokens, for the adapters of `jobqueue` to services of Azure.
//!
//! The crate knows credentials and tokens, but no storages: an adapter gets a credential from a
//! [`TokenSource`], and sends the token in its own way. Applications use the options of the adapters: those
//! of `jobqueue::azure`, `jobqueue::servicebus` and `jobqueue::postgres`.

#![forbid(unsafe_code)]

use std::fmt;
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::error::ErrorKind;
use azure_identity::{
    DeveloperToolsCredential, ManagedIdentityCredential, ManagedIdentityCredentialOptions, UserAssignedId,
    WorkloadIdentityCredential,
};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

/// The time that the automatic choice waits for a managed identity: outside Azure, no server answers.
const MANAGED_IDENTITY_TIMEOUT: Duration = Duration::from_secs(3);
const SLOW_IDENTITY: &str = "the managed identity did not answer in time";
/// The time that the developer tools are used after a managed identity did not answer, before it is tried
/// again.
const TOOLS_PERIOD: Duration = Duration::from_secs(300);

/// The age of a fetch at which the requests that wait for it fail. It is shorter than the adapters' time for
/// a whole request, so that those requests are known not to have been sent.
const FETCH_TIMEOUT: Duration = Duration::from_secs(25);
/// The age of a fetch at which a request stops waiting for it and uses the last token, if that is still
/// valid.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum duration of a fetch, and the interval between fetches while the last token is valid.
const FETCH_INTERVAL: Duration = Duration::from_secs(30);
/// The time before its expiry from which a token is no longer used. A service whose clock is ahead, or that
/// receives the request late, would refuse it. A refusal is final, whereas a request without a token is
/// retried.
const EXPIRY_MARGIN: Duration = Duration::from_secs(30);

/// The maximum number of characters of a failure's text, and of each part of a text with two parts.
const MAX_TEXT_CHARS: usize = 400;
const MAX_PART_CHARS: usize = 180;

/// The choice of a credential.
#[derive(Clone)]
#[non_exhaustive]
pub enum TokenSource {
    /// Workload identity if its variables are set, otherwise managed identity, otherwise developer tools.
    Automatic,
    /// The identity of the machine, or the user-assigned one with this client id.
    Managed(Option<String>),
    /// Workload identity of Kubernetes.
    Workload,
    /// The login of `az` or `azd`.
    DeveloperTools,
    /// The application's own credential.
    Custom(Arc<dyn TokenCredential>),
}

/// Generates the methods with which options choose the source of their tokens. The options need a method
/// `token` that stores the source.
#[doc(hidden)]
#[macro_export]
macro_rules! credential_methods {
    () => {
        /// Uses the identity of the machine, or the user-assigned one with `client_id`.
        pub fn managed_identity(self, client_id: Option<&str>) -> Self {
            self.token($crate::TokenSource::Managed(client_id.map(str::to_owned)))
        }

        /// Uses workload identity: `AZURE_CLIENT_ID`, `AZURE_TENANT_ID` and `AZURE_FEDERATED_TOKEN_FILE`.
        pub fn workload_identity(self) -> Self {
            self.token($crate::TokenSource::Workload)
        }

        /// Uses the login of `az` or `azd`.
        pub fn developer_tools(self) -> Self {
            self.token($crate::TokenSource::DeveloperTools)
        }

        /// Uses the application's own credential: any
        /// [`TokenCredential`](azure_core::credentials::TokenCredential) of `azure_core` 1.x, the only type
        /// of the SDK in this interface. The lease renewer's thread calls it too, so it must not wait for
        /// tasks of a particular runtime.
        pub fn credential(
            self,
            credential: std::sync::Arc<dyn azure_core::credentials::TokenCredential>,
        ) -> Self {
            self.token($crate::TokenSource::Custom(credential))
        }
    };
}

impl TokenSource {
    /// Returns a credential with its own connections and cache. The application's credential is shared,
    /// because there is only one.
    pub fn credential(&self) -> azure_core::Result<Arc<dyn TokenCredential>> {
        let inner: Arc<dyn TokenCredential> = match self {
            Self::Automatic => match WorkloadIdentityCredential::new(None) {
                Ok(workload) => workload,
                // The variables of workload identity are not set.
                Err(_) => Arc::new(FirstThatWorks {
                    managed: managed(None)?,
                    tools: DeveloperToolsCredential::new(None)?,
                    chosen: OnceLock::new(),
                    tools_until: Mutex::default(),
                }),
            },
            Self::Managed(client_id) => managed(client_id.clone())?,
            Self::Workload => WorkloadIdentityCredential::new(None)?,
            Self::DeveloperTools => DeveloperToolsCredential::new(None)?,
            Self::Custom(credential) => Arc::clone(credential),
        };
        Ok(Arc::new(CachingCredential::new(inner)))
    }
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Automatic => "Automatic",
            Self::Managed(_) => "Managed",
            Self::Workload => "Workload",
            Self::DeveloperTools => "DeveloperTools",
            Self::Custom(_) => "Custom",
        })
    }
}

fn managed(client_id: Option<String>) -> azure_core::Result<Arc<ManagedIdentityCredential>> {
    ManagedIdentityCredential::new(Some(ManagedIdentityCredentialOptions {
        user_assigned_id: client_id.map(UserAssignedId::ClientId),
        ..ManagedIdentityCredentialOptions::default()
    }))
}

/// A credential that tries managed identity, then developer tools. It keeps the first that returns a token,
/// unless the managed identity may only be slow or unreachable: then the tools are used for some minutes, and
/// after that both are tried again.
#[derive(Debug)]
struct FirstThatWorks {
    managed: Arc<dyn TokenCredential>,
    tools: Arc<dyn TokenCredential>,
    chosen: OnceLock<Arc<dyn TokenCredential>>,
    /// The time until which the tools are used without trying the managed identity.
    tools_until: Mutex<Option<Instant>>,
}

#[async_trait]
impl TokenCredential for FirstThatWorks {
    async fn get_token(
        &self,
        scopes: &[&str],
        options: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        if let Some(chosen) = self.chosen.get() {
            return chosen.get_token(scopes, options).await;
        }
        let are_tools_used = lock(&self.tools_until).is_some_and(|until| Instant::now() < until);
        if are_tools_used && let Ok(token) = self.tools.get_token(scopes, options).await {
            return Ok(token);
        }
        let managed = timeout(MANAGED_IDENTITY_TIMEOUT, self.managed.get_token(scopes, None)).await;
        let (refusal, may_recover) = match managed {
            Ok(Ok(token)) => {
                self.chosen.get_or_init(|| Arc::clone(&self.managed));
                return Ok(token);
            }
            Ok(Err(error)) => (error.to_string(), is_transient(&error)),
            Err(_) => (SLOW_IDENTITY.to_owned(), true),
        };
        match self.tools.get_token(scopes, None).await {
            Ok(token) => {
                if may_recover {
                    *lock(&self.tools_until) = Some(Instant::now() + TOOLS_PERIOD);
                } else {
                    self.chosen.get_or_init(|| Arc::clone(&self.tools));
                }
                Ok(token)
            }
            Err(tools) => {
                // If the tools have no token either, this may be an outage: the managed identity may come
                // back.
                let kind =
                    if may_recover || is_transient(&tools) { ErrorKind::Io } else { ErrorKind::Credential };
                // Each text is cut separately, because the end of a long one would hide the other.
                let part = |text: &str| shortened(text, MAX_PART_CHARS);
                let text = format!("{}; the developer tools: {}", part(&refusal), part(&tools.to_string()));
                Err(azure_core::Error::with_message(kind, text))
            }
        }
    }
}

/// A credential that caches its last token. While that token is valid, an endpoint that hangs or fails delays
/// no request for long. All callers that need a new token wait for the same fetch, which continues if they
/// stop waiting, because the renewal of a short lease has less time than some credentials take. Failures have
/// a distinct kind, so that an answer of Entra ID is not taken for an answer of the storage.
#[derive(Debug)]
struct CachingCredential {
    inner: Arc<dyn TokenCredential>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    token: Option<AccessToken>,
    /// The time before which the last token is used without a new fetch: [`FETCH_INTERVAL`] after the last
    /// answer or fetch.
    refresh_at: Option<Instant>,
    fetch: Option<Fetch>,
}

/// A fetch in progress.
#[derive(Debug, Clone)]
struct Fetch {
    began: Instant,
    answer: watch::Receiver<Option<Answer>>,
}

/// A token, or the reason why there is none.
type Answer = Result<AccessToken, Failure>;

#[derive(Debug, Clone)]
struct Failure {
    is_transient: bool,
    text: String,
}

impl Failure {
    fn transient(text: impl Into<String>) -> Self {
        Self { is_transient: true, text: text.into() }
    }
}

impl State {
    /// Returns the last token if it is valid for a request that is sent now.
    fn valid(&self) -> Option<AccessToken> {
        self.token
            .clone()
            .filter(|token| SystemTime::now() + EXPIRY_MARGIN < SystemTime::from(token.expires_on))
    }
}

impl Fetch {
    async fn wait(mut self, limit: Duration) -> Answer {
        let answered = self.answer.wait_for(Option::is_some);
        let answer = timeout_at(self.began + limit, answered).await.map(|answer| answer.ok()?.clone());
        answer
            .unwrap_or_else(|_| Some(Err(Failure::transient(format!("no token came within {limit:?}")))))
            .unwrap_or_else(|| Err(Failure::transient("the runtime of the fetch has ended")))
    }
}

impl CachingCredential {
    fn new(inner: Arc<dyn TokenCredential>) -> Self {
        Self { inner, state: Arc::default() }
    }

    /// Returns the fetch in progress, or starts one.
    fn fetch(&self, state: &mut State, scopes: &[&str]) -> Fetch {
        // A fetch never answers if its runtime has ended, or is no longer driven.
        let can_answer =
            |fetch: &&Fetch| fetch.answer.has_changed().is_ok() && fetch.began.elapsed() < FETCH_INTERVAL;
        if let Some(fetch) = state.fetch.as_ref().filter(can_answer) {
            return fetch.clone();
        }
        let (answered, answer) = watch::channel(None);
        let fetch = Fetch { began: Instant::now(), answer };
        state.fetch = Some(fetch.clone());
        let (inner, state) = (Arc::clone(&self.inner), Arc::clone(&self.state));
        let scopes: Vec<_> = scopes.iter().map(|&scope| scope.to_owned()).collect();
        tokio::spawn(async move {
            let scopes: Vec<_> = scopes.iter().map(String::as_str).collect();
            let answer = match timeout(FETCH_INTERVAL, inner.get_token(&scopes, None)).await {
                Ok(answer) => answer.map_err(|error| Failure {
                    is_transient: is_transient(&error),
                    text: shortened(&error.to_string(), MAX_TEXT_CHARS),
                }),
                Err(_) => Err(Failure::transient(format!("no token came within {FETCH_INTERVAL:?}"))),
            };
            let mut state = lock(&state);
            state.fetch = None;
            if let Ok(token) = &answer {
                // Even if no caller waits any more, the next one uses this token instead of a new fetch.
                (state.token, state.refresh_at) =
                    (Some(token.clone()), Some(Instant::now() + FETCH_INTERVAL));
            }
            answered.send_replace(Some(answer));
        });
        fetch
    }
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All calls have the same scopes, because each adapter has only one.
#[async_trait]
impl TokenCredential for CachingCredential {
    async fn get_token(
        &self,
        scopes: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        let (valid, fetch) = {
            let mut state = lock(&self.state);
            let valid = state.valid();
            if let Some(token) = &valid {
                let now = Instant::now();
                if state.refresh_at.is_some_and(|at| now < at) {
                    return Ok(token.clone());
                }
                // While this call waits, others use the last token.
                state.refresh_at = Some(now + FETCH_INTERVAL);
            }
            let fetch = self.fetch(&mut state, scopes);
            (valid, fetch)
        };
        let limit = if valid.is_some() { REFRESH_TIMEOUT } else { FETCH_TIMEOUT };
        match (fetch.wait(limit).await, valid) {
            (Ok(token), _) => Ok(token),
            (Err(Failure { text, .. }), Some(valid)) => {
                // A panic of the subscriber must not lose the token.
                drop(catch_unwind(|| {
                    tracing::warn!(error = text, "no new token; the last one is used until it expires");
                }));
                Ok(valid)
            }
            (Err(Failure { is_transient, text }), None) => {
                let kind = if is_transient { ErrorKind::Io } else { ErrorKind::Credential };
                Err(azure_core::Error::with_message(kind, text))
            }
        }
    }
}

/// Returns whether a failure is transient: the service that issues tokens cannot be reached or is busy.
fn is_transient(error: &azure_core::Error) -> bool {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Connection => true,
        ErrorKind::HttpResponse { status, .. } if matches!(u16::from(*status), 408 | 429 | 500..) => true,
        _ => error.downcast_ref::<azure_core::Error>().is_some_and(is_transient),
    }
}

fn shortened(text: &str, most: usize) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(most).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
