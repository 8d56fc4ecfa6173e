//! A certificate and a token that Azurite accepts.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::time::{Duration, OffsetDateTime};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;

/// A self-signed certificate with its key, in PEM.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// The certificate, which a client must trust.
    pub pem: String,
    key: String,
}

impl Certificate {
    /// Returns a certificate for `127.0.0.1` and `localhost`.
    pub fn for_this_machine() -> Self {
        Self::for_names(&["127.0.0.1", "localhost"])
    }

    /// Returns a certificate for other names.
    pub fn for_names(names: &[&str]) -> Self {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).expect("names that can be certified");
        Self { pem: made.cert.pem(), key: made.signing_key.serialize_pem() }
    }

    /// Writes both files and returns their paths.
    pub(crate) fn write_to(&self, folder: &Path) -> (PathBuf, PathBuf) {
        let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
        std::fs::write(&cert, &self.pem).expect("a certificate file");
        std::fs::write(&key, &self.key).expect("a key file");
        (cert, key)
    }
}

/// A credential whose token has the right claims and no valid signature, which Azurite does not check.
#[derive(Debug)]
pub struct FakeToken {
    /// The signature part of the token, to look for in logs.
    pub signature: String,
}

impl Default for FakeToken {
    fn default() -> Self {
        Self { signature: BASE64URL.encode(uuid::Uuid::new_v4().as_bytes()) }
    }
}

#[async_trait]
impl TokenCredential for FakeToken {
    async fn get_token(
        &self,
        _scopes: &[&str],
        _options: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_secs();
        let claims = serde_json::json!({
            "aud": "https://storage.azure.com",
            "iss": "https://sts.windows.net/ab1f708d-50f6-404c-a006-d71b2ac7a606/",
            "iat": now - 60, "nbf": now - 60, "exp": now + 3600,
        });
        let header = BASE64URL.encode(r#"{"typ":"JWT","alg":"RS256"}"#);
        let token = format!("{header}.{}.{}", BASE64URL.encode(claims.to_string()), self.signature);
        Ok(AccessToken::new(token, OffsetDateTime::now_utc() + Duration::hours(1)))
    }
}
