//! Tokens for the service: signatures made with a key, or tokens from Entra ID.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use azure_core::credentials::TokenCredential;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::error::Fault;
use super::sas::Key;
use jobqueue_entra::TokenSource;
use jobqueue_storage::runtime::Runtime;

const RENEW_AFTER_SHARE: f64 = 0.75;
const SCOPE: &str = "https://servicebus.azure.net/.default";

pub(super) enum Credential {
    /// A shared access key, the validity of its signatures, and the runtime with the clock for their expiry.
    Key(Key, Duration, Runtime),
    /// A source of tokens, the credential that it has chosen, and the runtime with the clock for the tokens'
    /// remaining validity.
    Entra(TokenSource, OnceCell<Arc<dyn TokenCredential>>, Runtime),
}

pub(super) struct Token {
    pub(super) text: String,
    /// The name of the token's kind for `$cbs`.
    pub(super) kind: &'static str,
    pub(super) renewal: Instant,
    pub(super) end: Instant,
}

impl Credential {
    pub(super) fn entra(source: TokenSource, runtime: Runtime) -> Self {
        Self::Entra(source, OnceCell::new(), runtime)
    }

    /// Returns a token for `audience`, such as `sb://host/queue`.
    pub(super) async fn token(&self, audience: &str) -> Result<Token, Fault> {
        match self {
            Self::Key(key, validity, runtime) => {
                let (renewal, end) = times(Instant::now(), *validity);
                let text = key.sign(audience, runtime.now() + *validity);
                let text = text.ok_or_else(|| Fault::not_sent("cannot create a token from this key"))?;
                Ok(Token { text, kind: "servicebus.windows.net:sastoken", renewal, end })
            }
            Self::Entra(source, chosen, runtime) => {
                let credential =
                    chosen.get_or_try_init(|| async { source.credential() }).await.map_err(no_token)?;
                let asked = Instant::now();
                let token = credential.get_token(&[SCOPE], None).await.map_err(no_token)?;
                let left = SystemTime::from(token.expires_on).duration_since(runtime.now());
                let (renewal, end) = times(asked, left.unwrap_or_default());
                Ok(Token { text: token.token.secret().to_owned(), kind: "jwt", renewal, end })
            }
        }
    }

    /// Returns the `authorization` header for a request over HTTP.
    pub(super) async fn header(&self, audience: &str) -> Result<String, Fault> {
        let token = self.token(audience).await?;
        Ok(match self {
            Self::Key(..) => token.text,
            Self::Entra(..) => format!("Bearer {}", token.text),
        })
    }
}

/// Returns the times at which a token is renewed and at which it expires.
fn times(begin: Instant, validity: Duration) -> (Instant, Instant) {
    (begin + validity.mul_f64(RENEW_AFTER_SHARE), begin + validity)
}

/// Does not show the key.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key, ..) => key.fmt(f),
            Self::Entra(source, ..) => source.fmt(f),
        }
    }
}

/// Returns a retryable fault: the credential may have a token later, because its own service may be down.
fn no_token(error: azure_core::Error) -> Fault {
    Fault::not_sent(format!("the credential returned no token: {error}"))
}
