use super::*;

const KEY: &str = "c2VjcmV0IGtleSBvZiB0aGUgYWNjb3VudA==";

fn addresses(text: &str) -> (String, String, String) {
    let account = parse(text).unwrap_or_else(|problem| panic!("{text}: {problem}"));
    (account.name, account.queues.into(), account.blobs.into())
}

#[test]
fn emulator_has_fixed_addresses() {
    let (name, queues, blobs) = addresses("UseDevelopmentStorage=true");
    assert_eq!(name, "devstoreaccount1");
    assert_eq!(queues, "http://127.0.0.1:10001/devstoreaccount1");
    assert_eq!(blobs, "http://127.0.0.1:10000/devstoreaccount1");
    let proxied = "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://localhost";
    assert_eq!(addresses(proxied).1, "http://localhost:10001/devstoreaccount1");
}

#[test]
fn accepted_strings() {
    let both = |queues: &str, blobs: &str| ("acme".to_owned(), queues.to_owned(), blobs.to_owned());
    let key = format!("AccountName=acme;AccountKey={KEY}");
    let public = both("https://acme.queue.core.windows.net/", "https://acme.blob.core.windows.net/");
    let china = both("https://acme.queue.core.chinacloudapi.cn/", "https://acme.blob.core.chinacloudapi.cn/");
    let table = [
        (key.clone(), public.clone()),
        (format!("DefaultEndpointsProtocol=https;{key};EndpointSuffix=core.windows.net"), public.clone()),
        (format!("  accountname=acme ; ACCOUNTKEY={KEY};;"), public.clone()),
        (format!("{key};EndpointSuffix=core.chinacloudapi.cn"), china),
        (format!("{key};TableEndpoint=https://x.example/;FileEndpoint=whatever"), public.clone()),
        (
            format!(
                "{key};QueueEndpoint=http://127.0.0.1:10001/acme;BlobEndpoint=http://127.0.0.1:10000/acme/"
            ),
            both("http://127.0.0.1:10001/acme", "http://127.0.0.1:10000/acme"),
        ),
        (
            format!("{key};QueueEndpoint=http://[::1]:1/acme;BlobEndpoint=http://localhost:2/acme"),
            both("http://[::1]:1/acme", "http://localhost:2/acme"),
        ),
        (
            "QueueEndpoint=https://acme.queue.core.windows.net/;SharedAccessSignature=?sv=1&sig=a%2Bb%3D"
                .to_owned(),
            public.clone(),
        ),
        (
            "BlobEndpoint=https://acme.blob.core.windows.net;SharedAccessSignature=sv=1&sig=ab".to_owned(),
            public,
        ),
    ];
    for (text, expected) in table {
        assert_eq!(addresses(&text), expected, "{text}");
    }
}

#[test]
fn refusal_names_the_setting_and_not_its_value() {
    let hidden = "hunter2SECRETvalue";
    let key = format!("AccountName=acme;AccountKey={KEY}");
    let table = [
        (String::new(), "AccountName"),
        (hidden.to_owned(), "setting 1"),
        (format!("{key};{hidden}"), "setting 3"),
        (format!("{key};{hidden}=x"), "setting 3"),
        (format!("AccountName=acme;AccountKey={hidden}!"), "AccountKey"),
        (format!("AccountName=acme;AccountKey={KEY}{hidden}"), "AccountKey"),
        (format!("AccountKey={KEY}"), "AccountName"),
        ("AccountName=acme".to_owned(), "AccountKey or SharedAccessSignature"),
        ("AccountName=acme;AccountKey=".to_owned(), "AccountKey is empty"),
        (format!("{key};AccountKey={KEY}"), "AccountKey is given twice"),
        (format!("{key};SharedAccessSignature=sv=1&sig=x"), "AccountKey and SharedAccessSignature"),
        (format!("AccountName=acme/{hidden};AccountKey={KEY}"), "AccountName"),
        (format!("{key};DefaultEndpointsProtocol=http"), "DefaultEndpointsProtocol"),
        (format!("{key};DefaultEndpointsProtocol={hidden}"), "DefaultEndpointsProtocol"),
        (format!("{key};EndpointSuffix=x/{hidden}"), "EndpointSuffix"),
        (format!("{key};QueueEndpoint=http://acme.queue.example"), "QueueEndpoint is plain http"),
        (format!("{key};QueueEndpoint=http://127.0.0.1.evil.example/a"), "QueueEndpoint is plain http"),
        (format!("{key};QueueEndpoint=https://u:{hidden}@h/a"), "QueueEndpoint"),
        (format!("{key};QueueEndpoint=https://acme.queue.example/?sig={hidden}"), "QueueEndpoint"),
        (format!("{key};QueueEndpoint={hidden}"), "QueueEndpoint"),
        (format!("{key};QueueEndpoint=https://127.0.0.1/acme"), "BlobEndpoint is missing"),
        (format!("{key};QueueEndpoint=ftp://acme.queue.example"), "QueueEndpoint"),
        (format!("QueueEndpoint=https://a.queue.x;SharedAccessSignature=sv=1&{hidden}"), "sig="),
        (format!("QueueEndpoint=https://a.queue.x;SharedAccessSignature=sig={hidden}"), "sv="),
        (
            format!("QueueEndpoint=https://a.queue.x;SharedAccessSignature=sv=1&sig={hidden} x"),
            "SharedAccess",
        ),
        ("UseDevelopmentStorage=false".to_owned(), "UseDevelopmentStorage"),
        (format!("UseDevelopmentStorage=true;AccountKey={KEY}"), "AccountKey"),
        ("DevelopmentStorageProxyUri=http://localhost".to_owned(), "DevelopmentStorageProxyUri"),
        ("UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://azurite".to_owned(), "plain http"),
    ];
    for (text, part) in table {
        let problem = parse(&text).expect_err(&text);
        assert!(problem.contains(part), "{text}: {problem}");
        assert!(!problem.contains(hidden) && !problem.contains(KEY), "{text}: {problem}");
    }
}

// The key became part of the host or of the account's name.
#[test]
fn address_with_settings_behind_it_is_refused_without_them() {
    for text in ["https://a.queue.x;SharedAccessKey=hunter2", "https://a.queue.x/;SharedAccessKey=b/hunter2"]
    {
        let problem = account::endpoint("the endpoint", text).unwrap_err();
        assert!(problem.contains("semicolon") && !problem.contains("hunter2"), "{problem}");
    }
}

#[test]
fn debug_shows_no_secret() {
    for text in [
        format!("AccountName=acme;AccountKey={KEY}"),
        "QueueEndpoint=https://a.queue.x;SharedAccessSignature=sv=1&sig=hunter2".to_owned(),
    ] {
        let shown = format!("{:?}", parse(&text).unwrap());
        assert!(
            !shown.contains("c2Vjcm") && !shown.contains("hunter2") && !shown.contains("115, 101"),
            "{shown}"
        );
    }
}
