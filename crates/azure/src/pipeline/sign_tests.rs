use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
struct Vectors {
    key: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    account: String,
    method: String,
    url: String,
    headers: BTreeMap<String, String>,
    body_length: u64,
    authorization: String,
}

/// Compares with a file made by `vectors/make.py` with Microsoft's Python SDK.
#[test]
fn signatures_are_those_of_the_python_sdk() {
    let vectors: Vectors = serde_json::from_str(include_str!("vectors/signatures.json")).unwrap();
    let key = BASE64.decode(&vectors.key).unwrap();
    assert!(vectors.cases.len() >= 8);
    for case in vectors.cases {
        let headers = case.headers.into_iter().map(|(name, value)| (name.to_lowercase(), value)).collect();
        let url = Url::parse(&case.url).unwrap();
        let text = string_to_sign(&case.method, &url, &headers, case.body_length, &case.account);
        let ours = format!("SharedKey {}:{}", case.account, signature(&key, &text));
        assert_eq!(ours, case.authorization, "{}: signed was\n{text}", case.name);
    }
}

#[test]
fn path_style_address_names_the_account_twice() {
    let url = Url::parse("http://127.0.0.1:10001/devstoreaccount1/orders?comp=metadata").unwrap();
    let text = string_to_sign("GET", &url, &BTreeMap::new(), 0, "devstoreaccount1");
    assert!(text.ends_with("\n/devstoreaccount1/devstoreaccount1/orders\ncomp:metadata"), "{text}");
}

#[test]
fn empty_body_has_no_length() {
    let url = Url::parse("https://a.queue.core.windows.net/q").unwrap();
    let headers = BTreeMap::from([("content-length".to_owned(), "0".to_owned())]);
    assert!(string_to_sign("PUT", &url, &headers, 0, "a").starts_with("PUT\n\n\n\n\n"));
    assert!(string_to_sign("PUT", &url, &headers, 7, "a").starts_with("PUT\n\n\n7\n\n"));
}
