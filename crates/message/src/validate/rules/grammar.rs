//! The rules `url`, `email` and `pattern = "…"` for the form of texts.

use std::sync::OnceLock;

use email_address::{EmailAddress, Options};
use regex::Regex;

use super::super::{Path, Violations};

/// Requires an absolute URL of any scheme, by the WHATWG standard.
pub fn url(text: Option<&str>, path: &Path<'_>, name: &str, violations: &mut Violations) {
    if text.is_some_and(|text| url::Url::parse(text).is_err()) {
        violations.add(&path.to(name), "url", "must be an absolute URL, such as https://example.com/a");
    }
}

/// Requires a single bare email address by RFC 5322, without a display name or a domain literal.
pub fn email(text: Option<&str>, path: &Path<'_>, name: &str, violations: &mut Violations) {
    if text.is_some_and(|text| !is_email(text)) {
        violations.add(&path.to(name), "email", "must be an email address, such as name@example.com");
    }
}

fn is_email(text: &str) -> bool {
    let options = Options::default().without_display_text().without_domain_literal();
    EmailAddress::parse_with_options(text, options).is_ok()
}

/// A regular expression that is compiled on first use, once per process.
#[derive(Debug)]
pub struct Pattern {
    source: &'static str,
    compiled: OnceLock<Option<Regex>>,
}

impl Pattern {
    /// Returns a pattern. The derive macro has checked its syntax at compile time.
    pub const fn new(source: &'static str) -> Self {
        Self { source, compiled: OnceLock::new() }
    }

    /// Does nothing. It makes the compiler generate the drop code of patterns, which every static needs, in
    /// this crate and not in the crate of each message with a pattern.
    pub fn discard(self) {}

    /// Returns the compiled expression. Returns `None` if its program is larger than the `regex` crate
    /// allows, which a check of the syntax does not detect.
    fn regex(&self) -> Option<&Regex> {
        self.compiled.get_or_init(|| Regex::new(self.source).ok()).as_ref()
    }
}

/// Requires that the pattern matches a part of the text.
pub fn pattern(
    text: Option<&str>,
    path: &Path<'_>,
    name: &str,
    violations: &mut Violations,
    pattern: &'static Pattern,
) {
    let Some(text) = text else { return };
    let problem = match pattern.regex() {
        Some(regex) if regex.is_match(text) => return,
        Some(_) => format!("must match {}", pattern.source),
        None => {
            format!("cannot be checked: the pattern {} is too large, write a smaller one", pattern.source)
        }
    };
    violations.add(&path.to(name), "pattern", problem);
}
