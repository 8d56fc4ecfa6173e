//! Shared access signatures of Service Bus.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jobqueue_storage::secret::Secret;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::Sha256;

pub(super) const VALIDITY: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone)]
pub(super) struct Key {
    pub(super) name: Arc<str>,
    pub(super) secret: Secret<String>,
}

impl Key {
    /// Returns a token for `resource`, such as `sb://host/queue`, that is valid until `until`.
    pub(super) fn sign(&self, resource: &str, until: SystemTime) -> Option<String> {
        let resource = encode(&resource.to_lowercase());
        let since = until.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // Rounded up to whole seconds, so that a short validity is not cut to nothing.
        let expiry = since.as_secs() + u64::from(since.subsec_nanos() > 0);
        let mut mac = Hmac::<Sha256>::new_from_slice(self.secret.expose().as_bytes()).ok()?;
        mac.update(format!("{resource}\n{expiry}").as_bytes());
        let signature = encode(&BASE64.encode(mac.finalize().into_bytes()));
        let name = encode(&self.name);
        Some(format!("SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={name}"))
    }
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_covers_resource_and_expiry_and_debug_hides_the_key() {
        let key = Key { name: "jobs".into(), secret: Secret::new("a-secret".to_owned()) };
        let until = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        // Computed in Python by the formula of the documentation.
        assert_eq!(
            key.sign("sb://Host/Queue", until).as_deref(),
            Some(concat!(
                "SharedAccessSignature sr=sb%3A%2F%2Fhost%2Fqueue&sig=",
                "PR3KEwIxmjdzj6ekNCR2PvgQQvOpWlG8YvXfrnoKkes%3D",
                "&se=1700000000&skn=jobs"
            ))
        );
        assert!(!format!("{key:?}").contains("a-secret"));
    }
}
