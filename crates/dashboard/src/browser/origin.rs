//! Refuses cross-site changes (CSRF), and requests under the name of another machine (DNS rebinding).

use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, Uri};
use jobqueue_storage::secret::is_loopback;

/// Returns whether the request may change something: it comes from a page of the same origin, or the user has
/// made it directly.
///
/// Browsers report the source of a request in `Sec-Fetch-Site`, which no page can forge. If that header is
/// absent, `Origin` must name the host of the request. A request with neither header is refused.
pub(crate) fn may_change(method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
    if method.is_safe() {
        return true;
    }
    match headers.get("sec-fetch-site") {
        Some(site) => matches!(site.as_bytes(), b"same-origin" | b"none"),
        None => match headers.get(ORIGIN) {
            Some(origin) => origin.to_str().is_ok_and(|origin| is_host(origin, uri, headers)),
            None => false,
        },
    }
}

/// Returns whether the request names this machine: `localhost` or a loopback address. Otherwise a page of
/// another site could reach a dashboard on loopback, by making the name of that site point to this machine.
pub(crate) fn is_for_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    is_loopback(name)
}

fn is_host(origin: &str, uri: &Uri, headers: &HeaderMap) -> bool {
    let Some((_, origin)) = origin.split_once("://") else { return false };
    let header = headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = header.or_else(|| uri.authority().map(Authority::as_str));
    host.is_some_and(|host| host.eq_ignore_ascii_case(origin))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(headers: &[(&'static str, &str)]) -> bool {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        may_change(&Method::POST, &Uri::from_static("/pause"), &headers.collect())
    }

    #[test]
    fn names_of_other_machines_are_refused() {
        let named = |host: &str| is_for_this_machine(&[(HOST, host.parse().unwrap())].into_iter().collect());
        for host in ["localhost", "LOCALHOST:8181", "127.0.0.1:8181", "[::1]:8181", "[::1]", "127.0.0.2"] {
            assert!(named(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8181",
            "localhost.evil.example",
            "127.0.0.1.evil.example:80",
            "10.0.0.1",
            "",
        ] {
            assert!(!named(host), "{host}");
        }
        assert!(!is_for_this_machine(&HeaderMap::new()));
    }

    #[test]
    fn requests_of_other_sites_are_refused() {
        let host = ("host", "jobs.example:8080");
        assert!(
            allowed(&[host, ("sec-fetch-site", "same-origin")]) && allowed(&[("sec-fetch-site", "none")])
        );
        assert!(allowed(&[host, ("origin", "http://jobs.example:8080")]));
        for site in ["cross-site", "same-site", "Same-Origin ", ""] {
            let headers = [host, ("sec-fetch-site", site), ("origin", "http://jobs.example:8080")];
            assert!(!allowed(&headers), "{site}");
        }
        for origin in
            ["null", "http://evil.example", "http://jobs.example", "http://jobs.example:8080.evil", ""]
        {
            assert!(!allowed(&[host, ("origin", origin)]), "{origin}");
        }
        assert!(!allowed(&[host]) && !allowed(&[("origin", "http://jobs.example:8080")]));
        assert!(may_change(&Method::GET, &Uri::from_static("/"), &HeaderMap::new()));
    }
}
