//! Users with passwords, by HTTP basic authentication, and the bearer token for programs that read figures.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jobqueue_admin::{AccessLevel, Admin};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The paths that the token opens. They show figures, but no jobs.
const TOKEN_PATHS: [&str; 2] = ["/metrics", "/scale"];

/// A user, the digest of the name and password, and the rights of the user.
#[derive(Clone)]
struct Login {
    user: Arc<str>,
    digest: [u8; 32],
    level: AccessLevel,
}

/// The logins of a dashboard. Without a login or a token, no request needs credentials.
#[derive(Clone, Default)]
pub(crate) struct Logins {
    users: Vec<Login>,
    /// The digest of the token for figures.
    token: Option<[u8; 32]>,
}

impl Logins {
    /// Adds a login. An empty password makes authentication required, but admits no request.
    pub(crate) fn add(&mut self, user: &str, password: &str, level: AccessLevel) {
        // A secret that is mounted as a file often ends with a line break.
        let password = password.trim_end_matches(['\r', '\n']);
        self.users.push(Login {
            user: user.into(),
            digest: digest(user.as_bytes(), password.as_bytes()),
            level,
        });
    }

    /// Sets the token, trimmed like the tokens of requests.
    pub(crate) fn set_token(&mut self, token: &str) {
        self.token = Some(digest(b"", token.trim().as_bytes()));
    }

    /// Returns the view of a program that reads figures with the token; `None` for any other request.
    pub(crate) fn view_of_figures(&self, admin: &Admin, parts: &Parts) -> Option<Admin> {
        let given = bearer(&parts.headers).filter(|_| TOKEN_PATHS.contains(&parts.uri.path()))?;
        let is_token = bool::from(self.token?.ct_eq(&digest(b"", given.as_bytes())));
        is_token.then(|| admin.acting_as("metrics", &AccessLevel::ReadOnly))
    }

    /// Returns whether a request needs a name and a password. If there is only a token, requests without it
    /// need them too, unless an access function decides on such requests.
    pub(crate) fn are_needed(&self, has_access_function: bool) -> bool {
        !self.users.is_empty() || self.token.is_some() && !has_access_function
    }

    /// Returns the name of the user that a request names, with any password; `None` if there is no such user.
    pub(crate) fn named(&self, headers: &HeaderMap) -> Option<&str> {
        let given = basic(headers)?;
        let name = given.split(|byte| *byte == b':').next()?;
        self.users.iter().map(|login| &*login.user).find(|user| user.as_bytes() == name)
    }

    /// Returns the view of the user who sends the request; `None` without a valid name and password. The
    /// comparison takes the same time wherever a wrong password differs.
    pub(crate) fn view(&self, admin: &Admin, parts: &Parts) -> Option<Admin> {
        let given = basic(&parts.headers)?;
        let colon = given.iter().position(|byte| *byte == b':')?;
        let (user, password) = (&given[..colon], &given[colon + 1..]);
        let given = (!password.is_empty()).then(|| digest(user, password))?;
        let login = self.users.iter().find(|login| login.digest.ct_eq(&given).into())?;
        Some(admin.acting_as(Arc::clone(&login.user), &login.level))
    }
}

jobqueue_storage::debug_fields! {
    Logins {}
}

fn basic(headers: &HeaderMap) -> Option<Vec<u8>> {
    let (scheme, text) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("basic").then(|| STANDARD.decode(text.trim()).ok())?
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|token| !token.is_empty())
}

fn digest(user: &[u8], password: &[u8]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    // The length keeps the name and the password apart: `a` + `bc` differs from `ab` + `c`.
    hasher.update((user.len() as u64).to_le_bytes());
    hasher.update(user);
    hasher.update(password);
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use axum::http::Request;
    use jobqueue::Storage;
    use jobqueue_admin::Action;

    use super::*;

    fn request(path: &str, authorization: &str) -> Parts {
        let request = Request::builder().uri(path).header(AUTHORIZATION, authorization).body(()).unwrap();
        request.into_parts().0
    }

    fn logins() -> (Logins, Admin) {
        let mut logins = Logins::default();
        logins.add("ada", "a:b", AccessLevel::Operate);
        logins.add("eve", "looks", AccessLevel::ReadOnly);
        logins.set_token("figures");
        (logins, Admin::builder(Storage::memory()).access(AccessLevel::Operate).build())
    }

    #[test]
    fn only_the_right_name_and_password_pass() {
        let (logins, admin) = logins();
        let with = |text: &str| {
            let view = logins.view(&admin, &request("/", &format!("Basic {}", STANDARD.encode(text))))?;
            Some((view.operator().to_owned(), view.access().allows(Action::Purge)))
        };
        assert_eq!(with("ada:a:b"), Some(("ada".to_owned(), true)));
        assert_eq!(with("eve:looks"), Some(("eve".to_owned(), false)));
        for wrong in ["ada:a:c", "ada:looks", "eve:a:b", "ada", "ada:", "adaa::b", ":ada:a:b", ":figures", ""]
        {
            assert_eq!(with(wrong), None, "{wrong}");
        }
        for wrong in ["Bearer YWRhOmE6Yg==", "Basic !", "Basic", ""] {
            assert!(logins.view(&admin, &request("/", wrong)).is_none(), "{wrong}");
        }
    }

    /// A missing environment variable, read with a default, results in an empty password.
    #[test]
    fn empty_password_opens_nothing() {
        let admin = Admin::builder(Storage::memory()).access(AccessLevel::Operate).build();
        for user in ["ada", ""] {
            let mut logins = Logins::default();
            logins.add(user, "", AccessLevel::Operate);
            let given = STANDARD.encode(format!("{user}:"));
            assert!(logins.view(&admin, &request("/", &format!("Basic {given}"))).is_none(), "{user:?}");
            assert!(logins.are_needed(false), "{user:?}");
        }
    }

    #[test]
    fn token_opens_the_figures_and_nothing_else() {
        let (logins, admin) = logins();
        let with =
            |path, token: &str| logins.view_of_figures(&admin, &request(path, &format!("Bearer {token}")));
        for path in TOKEN_PATHS {
            assert!(!with(path, "figures").unwrap().access().allows(Action::Inspect), "{path}");
            assert!(with(path, "wrong").is_none() && with(path, "").is_none(), "{path}");
        }
        assert!(with("/", "figures").is_none() && with("/queue", "figures").is_none());
        assert!(with("/metrics", "mounted").is_none());
        let mut mounted = Logins::default();
        mounted.set_token("mounted\n");
        assert!(
            mounted.view_of_figures(&admin, &request("/metrics", "Bearer mounted")).is_some(),
            "a secret that is mounted as a file often ends with a line break"
        );
        let mut logins = Logins::default();
        assert!(!logins.are_needed(false));
        logins.set_token("");
        assert!(logins.are_needed(false) && !logins.are_needed(true));
        assert!(
            logins.view_of_figures(&admin, &request("/metrics", "Bearer ")).is_none(),
            "an empty token opens nothing"
        );
    }
}
