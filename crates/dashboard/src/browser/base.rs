//! Relative links that work wherever the dashboard is nested.

/// Returns the relative path from the requested page to the root of the dashboard, with a slash at its end.
///
/// Relative links work under any path, even behind a proxy that strips a part of the path. `inner` is the
/// path within the dashboard, and `original` is the full path of the request.
pub(crate) fn base(inner: &str, original: &str) -> String {
    let depth = inner.matches('/').count().saturating_sub(1);
    if depth > 0 {
        return "../".repeat(depth);
    }
    match original.rsplit_once('/') {
        // The root was requested without its final slash, so links would resolve one level too high.
        Some((_, last)) if matches!(inner, "" | "/") && !last.is_empty() => format!("./{last}/"),
        _ => "./".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_the_root_from_any_depth() {
        assert_eq!(base("/", "/"), "./");
        assert_eq!(base("/", "/ops/jobs/"), "./");
        assert_eq!(base("/", "/ops/jobs"), "./jobs/");
        assert_eq!(base("/workers", "/ops/jobs/workers"), "./");
        assert_eq!(base("/queues/mails/dead", "/ops/jobs/queues/mails/dead"), "../../");
    }
}
