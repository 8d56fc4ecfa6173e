//! One name and one password, by HTTP basic authentication.

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// The digests of the name and the password that a request must carry.
#[derive(Clone)]
pub(crate) struct Credentials {
    digest: [u8; 32],
}

impl Credentials {
    pub(crate) fn new(user: &str, password: &str) -> Self {
        Self { digest: digest(user.as_bytes(), password.as_bytes()) }
    }

    /// Returns whether the request carries them. The time that it takes does not depend on where a wrong password differs.
    pub(crate) fn are_in(&self, headers: &HeaderMap) -> bool {
        let Some(given) = given(headers) else { return false };
        let Some(colon) = given.iter().position(|byte| *byte == b':') else { return false };
        let given = digest(&given[..colon], &given[colon + 1..]);
        // `black_box` keeps the comparison from ending at the first difference.
        let difference = self.digest.iter().zip(given).fold(0, |all, (one, other)| all | (one ^ other));
        std::hint::black_box(difference) == 0
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(..)")
    }
}

fn given(headers: &HeaderMap) -> Option<Vec<u8>> {
    let (scheme, text) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("basic").then(|| STANDARD.decode(text.trim()).ok())?
}

fn digest(user: &[u8], password: &[u8]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    // With its length, no part of the name passes for one of the password.
    hasher.update((user.len() as u64).to_le_bytes());
    hasher.update(user);
    hasher.update(password);
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(text: &str) -> HeaderMap {
        [(AUTHORIZATION, text.parse().unwrap())].into_iter().collect()
    }

    #[test]
    fn only_the_right_name_and_password_pass() {
        let credentials = Credentials::new("ada", "a:b");
        let with = |text: &str| credentials.are_in(&headers(&format!("Basic {}", STANDARD.encode(text))));
        assert!(with("ada:a:b"));
        for wrong in ["ada:a:c", "ada", "ada:", "adaa::b", ":ada:a:b", ""] {
            assert!(!with(wrong), "{wrong}");
        }
        assert!(!credentials.are_in(&HeaderMap::new()));
        assert!(
            !credentials.are_in(&headers("Bearer YWRhOmE6Yg==")) && !credentials.are_in(&headers("Basic !"))
        );
    }
}
