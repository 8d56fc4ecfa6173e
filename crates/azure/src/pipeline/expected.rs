//! Checks the author and the form of an answer, so that the answer of another server is never taken for the
//! service's.
//!
//! Proxies, gateways and captive portals between a client and the service answer with HTML pages of any
//! status and length, and some cut off long answers. Such an answer, taken for an empty list, hides jobs.
//! Taken for a refusal, it hides that a change was applied, or ends a job that waits for its payload.

use azure_core::http::headers::Headers;
use azure_core::http::{Method, Request};
use quick_xml::events::Event;
use quick_xml::reader::Reader;

use super::exchange::ExchangeError;

/// The header in every answer of the service.
const REQUEST_ID: &str = "x-ms-request-id";

/// Checks the author of an answer. This check comes first: status, headers, length and content of another
/// server's answer mean nothing.
///
/// # Errors
/// [`ExchangeError::OtherServer`] if another server answered.
pub(super) fn check_author(status: u16, headers: &Headers) -> Result<(), ExchangeError> {
    match headers.get_optional_str(&REQUEST_ID.into()) {
        Some(_) => Ok(()),
        None => Err(ExchangeError::OtherServer { status }),
    }
}

/// The root element of a list.
const LIST_ROOT: &[u8] = b"EnumerationResults";

/// Checks that a list of queues, containers or blobs is complete. Lists of messages are checked where they
/// are parsed.
///
/// # Errors
/// [`ExchangeError::Unexpected`] if the answer is cut off, or is another document.
pub(super) fn check(request: &Request, status: u16, body: &[u8]) -> Result<(), ExchangeError> {
    let is_list = request.method() == Method::Get
        && request.url().query_pairs().any(|(name, value)| name == "comp" && value == "list");
    if is_list && (200..300).contains(&status) && !is_complete(body) {
        return Err(ExchangeError::Unexpected("its XML is cut off, or is another document"));
    }
    Ok(())
}

/// Returns whether the document is a list, and complete up to the end of its root element.
fn is_complete(body: &[u8]) -> bool {
    // The service writes a byte order mark.
    let mut reader = Reader::from_reader(body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body));
    let (mut depth, mut complete) = (0_usize, false);
    loop {
        match reader.read_event() {
            Ok(Event::Start(start)) => {
                if depth == 0 && start.local_name().as_ref() != LIST_ROOT {
                    return false;
                }
                depth += 1;
            }
            Ok(Event::End(_)) => {
                depth = depth.saturating_sub(1);
                complete |= depth == 0;
            }
            Ok(Event::Empty(empty)) if depth == 0 => complete |= empty.local_name().as_ref() == LIST_ROOT,
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
    fn html_page_is_no_answer_of_the_service() {
        let page = "<html><body>Please sign in.</body></html>";
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
    fn failures_are_reported_by_their_status() {
        assert!(answer(Method::Get, LIST, 404, true, "<html/>"));
        assert!(!answer(Method::Get, LIST, 404, false, "<html/>"));
    }
}
