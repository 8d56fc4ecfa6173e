//! Checks the author and the form of an answer, so that the answer of another server is never taken for the service's.
//!
//! Proxies, gateways and captive portals stand between a client and the service. They answer with pages of HTML, of any
//! status and length, and some cut a long answer off. Taken for an empty list, such an answer hides work; taken for a
//! refusal, it hides that a change was made, or ends a job that waits for a payload. The rules come from the reference of the REST operations ([queues], [blobs]).
//!
//! [queues]: https://learn.microsoft.com/rest/api/storageservices/queue-service-rest-api
//! [blobs]: https://learn.microsoft.com/rest/api/storageservices/blob-service-rest-api

use azure_core::http::headers::Headers;
use azure_core::http::{Method, Request};
use quick_xml::events::Event;
use quick_xml::reader::Reader;

use super::exchange::ExchangeError;

/// The header that the service puts into every answer.
const REQUEST_ID: &str = "x-ms-request-id";

/// Checks the author of an answer. Comes first: status, headers, length and content of another server's mean nothing.
///
/// # Errors
/// [`ExchangeError::OtherServer`]: another server answered.
pub(super) fn check_author(status: u16, headers: &Headers) -> Result<(), ExchangeError> {
    match headers.get_optional_str(&REQUEST_ID.into()) {
        Some(_) => Ok(()),
        None => Err(ExchangeError::OtherServer { status }),
    }
}

/// Checks an answer of the service that reports success: its status, and that its XML is complete.
///
/// # Errors
/// [`ExchangeError::Unexpected`]: the status is of another operation, or the answer is cut off.
pub(super) fn check(request: &Request, status: u16, body: &[u8]) -> Result<(), ExchangeError> {
    if !(200..300).contains(&status) {
        return Ok(());
    }
    if !is_expected(request, status) {
        return Err(ExchangeError::Unexpected("its status is not one of the operation's"));
    }
    match root(request) {
        Some(root) if !is_complete(body, root) => {
            Err(ExchangeError::Unexpected("its XML is cut off, or is another document"))
        }
        _ => Ok(()),
    }
}

fn is_expected(request: &Request, status: u16) -> bool {
    match request.method() {
        Method::Get => matches!(status, 200 | 206),
        Method::Head => status == 200,
        Method::Post => status == 201,
        Method::Delete => matches!(status, 202 | 204),
        // Lease operations and blob metadata answer 200, a break answers 202.
        Method::Put if has_query(request, "comp") => matches!(status, 200..=202 | 204),
        Method::Put => matches!(status, 201 | 204),
        _ => true,
    }
}

fn has_query(request: &Request, name: &str) -> bool {
    request.url().query_pairs().any(|(found, _)| found == name)
}

/// Returns the root element of the answer to a listing. The adapter itself reads the answers with messages.
fn root(request: &Request) -> Option<&'static [u8]> {
    let is_list = request.url().query_pairs().any(|(name, value)| name == "comp" && value == "list");
    (is_list && request.method() == Method::Get).then_some(b"EnumerationResults")
}

/// Returns whether the document has this root and continues to the root's end.
fn is_complete(body: &[u8], root: &[u8]) -> bool {
    // The service writes a byte order mark.
    let mut reader = Reader::from_reader(body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body));
    let (mut depth, mut complete) = (0_usize, false);
    loop {
        match reader.read_event() {
            Ok(Event::Start(start)) => {
                if depth == 0 && start.local_name().as_ref() != root {
                    return false;
                }
                depth += 1;
            }
            Ok(Event::End(_)) => {
                depth = depth.saturating_sub(1);
                complete |= depth == 0;
            }
            Ok(Event::Empty(empty)) if depth == 0 => complete |= empty.local_name().as_ref() == root,
            Ok(Event::Eof) => return complete && depth == 0,
            Ok(Event::DocType(_)) | Err(_) => return false,
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use azure_core::http::Url;

    use super::*;

    const MESSAGES: &str = "http://127.0.0.1/a/q/messages";
    const LIST: &str = "http://127.0.0.1/a/c?restype=container&comp=list";

    fn answer(method: Method, url: &str, status: u16, from_service: bool, body: &str) -> bool {
        let mut headers = Headers::new();
        if from_service {
            headers.insert(REQUEST_ID, "1");
        }
        let request = Request::new(Url::parse(url).unwrap(), method);
        check_author(status, &headers).and_then(|()| check(&request, status, body.as_bytes())).is_ok()
    }

    #[test]
    fn a_page_of_html_is_no_answer_of_the_service() {
        let page = "<html><body>Please sign in.</body></html>";
        for method in [Method::Put, Method::Delete, Method::Post] {
            assert!(!answer(method, MESSAGES, 200, true, page), "{method:?}");
        }
        assert!(!answer(Method::Get, MESSAGES, 200, false, page));
        assert!(!answer(Method::Get, LIST, 200, true, page));
        assert!(!answer(Method::Get, LIST, 200, true, ""));
    }

    #[test]
    fn every_cut_of_a_list_is_noticed() {
        let list = "\u{FEFF}<?xml version=\"1.0\"?><EnumerationResults><Blobs><Blob><Name>1</Name>\
                    </Blob><Blob><Name>2</Name></Blob></Blobs></EnumerationResults>";
        assert!(answer(Method::Get, LIST, 200, true, list));
        assert!(answer(Method::Get, LIST, 200, true, "<EnumerationResults/>"));
        for cut in (0..list.len()).filter(|cut| list.is_char_boundary(*cut)) {
            assert!(!answer(Method::Get, LIST, 200, true, &list[..cut]), "{}", &list[..cut]);
        }
    }

    #[test]
    fn answers_of_the_service_are_let_through() {
        let (queue, blob) = ("http://127.0.0.1/a/q", "http://127.0.0.1/a/c/b");
        for (method, url, status) in [
            (Method::Put, queue, 201),
            (Method::Put, queue, 204),
            (Method::Delete, queue, 204),
            (Method::Get, "http://127.0.0.1/a/q?comp=metadata", 200),
            (Method::Put, "http://127.0.0.1/a/c/b?comp=lease", 202),
            (Method::Put, blob, 201),
            (Method::Get, blob, 206),
            (Method::Head, blob, 200),
            (Method::Delete, blob, 202),
        ] {
            assert!(answer(method, url, status, true, ""), "{method:?} {url} {status}");
        }
        assert!(answer(Method::Get, queue, 404, true, "<html/>"), "failures are told by their status");
        assert!(!answer(Method::Get, queue, 404, false, "<html/>"));
    }
}
