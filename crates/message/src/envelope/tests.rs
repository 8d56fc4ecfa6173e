use super::text::TextError;
use super::*;
use crate::settings::MessageEncoding;
use jobqueue_storage::QueueName;

fn json(text: &str) -> Payload {
    Payload::Json(JsonText::check(Bytes::copy_from_slice(text.as_bytes())).unwrap())
}

fn event(text: &str) -> Envelope {
    match parse(text) {
        Ok(Parsed::Event(envelope)) => *envelope,
        other => panic!("not an event: {other:?}"),
    }
}

fn full() -> Envelope {
    let queue = QueueName::new("slicerequest").unwrap();
    let mut envelope = Envelope::new("0190", "app", "mosaic.slice", json(r#"{"slice":3}"#));
    envelope.version = Some(2);
    envelope.time = Some("2026-11-20T06:00:00Z".into());
    envelope.key = Some("key".into());
    envelope.content_type = Some("application/json".into());
    envelope.not_before = Some("2026-12-20T06:00:00Z".into());
    envelope.fence_base = 1 << 40;
    envelope.history = History {
        attempts: 2,
        uncounted: 3,
        delivery: 4,
        finished: Some("{}".into()),
        deferral: Some(Deferral {
            cause: "unknown".into(),
            since: "2026-11-20T06:30:00.000Z".into(),
            count: 1,
        }),
        last_error: Some("no".into()),
        checkpoint: Some(Checkpoint::Stored(StoredReference::for_data(
            "20261120",
            &queue,
            uuid::Uuid::nil(),
            b"abc",
        ))),
        past: Some("[]".into()),
    };
    envelope.dead_letter = Some(DeadLetterNote {
        reason: "rejected".into(),
        queue: "slicerequest".into(),
        message: Some("m".into()),
        time: "2026-11-20T07:00:00Z".into(),
        deliveries: 9,
        worker: Some("w".into()),
    });
    envelope.insert_header("tenant", "blue").unwrap();
    envelope
}

#[test]
fn event_is_read_back_as_written() {
    let written = full().to_json().unwrap();
    let read = event(&written);
    assert_eq!(read.to_json().unwrap(), written);
    assert_eq!(read.history, full_history(&read));
    assert_eq!(read.headers()["tenant"], "blue");
}

/// Returns the full history, with the checkpoint of `read`.
fn full_history(read: &Envelope) -> History {
    History { checkpoint: read.history.checkpoint.clone(), ..full().history }
}

#[test]
fn debug_forms_show_no_payload() {
    const SECRET: &str = "s3cret-freight";
    let text = format!("\"{SECRET}\"");
    let mut envelope = Envelope::new("the-id", "s", "t", json(&text));
    envelope.history.finished = Some(text.clone());
    envelope.history.checkpoint = Some(Checkpoint::Inline(text.clone()));
    envelope.insert_header("tenant", SECRET).unwrap();
    let written = envelope.to_json().unwrap();
    assert!(written.contains(SECRET));
    let shown = format!("{:?}", parse(&written));
    assert!(shown.contains("the-id") && shown.contains("tenant") && !shown.contains(SECRET), "{shown}");
    let binary = Payload::Binary(Bytes::from_static(SECRET.as_bytes()));
    let shown = format!("{:?} {binary:?} {:?}", parse(&text), envelope.history.checkpoint);
    assert!(!shown.contains(SECRET), "{shown}");
}

#[test]
fn unknown_attributes_survive() {
    let read = event(r#"{"specversion":"1.0","id":"1","source":"s","type":"t","other":[1, 2],"n":7}"#);
    let again = read.to_json().unwrap();
    assert!(again.contains(r#""other":[1, 2]"#) && again.contains(r#""n":7"#), "{again}");
}

#[test]
fn inline_payload_next_to_a_reference_survives() {
    let sha = "00".repeat(32);
    let place = "20261120/orders/0f0f0f0f-0000-4000-8000-000000000000";
    let read = event(&format!(
        r#"{{"specversion":"1.0","id":"1","source":"s","type":"t","data":[7],"dataref":"{place}","datasize":1,"datasha256":"{sha}"}}"#
    ));
    assert!(matches!(read.payload, Payload::Stored(_)));
    assert!(read.to_json().unwrap().contains(r#""data":[7]"#));
}

#[test]
fn payloads_keep_every_byte() {
    for data in [r#""""#, r#""  a \r\n ""#, r#"{ "a" :  1.50 }"#, "[ ]", "1e400", "18446744073709551616"] {
        let written = Envelope::new("1", "s", "t", json(data)).to_json().unwrap();
        match event(&written).payload {
            Payload::Json(read) => assert_eq!(read.as_bytes(), data.as_bytes()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn characters_xml_cannot_carry_are_escaped() {
    let mut envelope = Envelope::new("1", "s", "t", json("\"a\u{ffff}\u{fffe}b\""));
    envelope.history.last_error = Some("x\u{1}\u{ffff}".into());
    let written = envelope.to_json().unwrap();
    assert!(!written.contains(['\u{ffff}', '\u{fffe}', '\u{1}']));
    assert_eq!(event(&written).history.last_error.as_deref(), Some("x\u{1}\u{ffff}"));
}

#[test]
fn base64_is_read_in_every_common_form() {
    let json = full().to_json().unwrap();
    let wire = to_wire(json.clone(), MessageEncoding::Base64);
    let folded = wire.as_bytes().chunks(60).map(|l| String::from_utf8_lossy(l) + "\r\n").collect::<String>();
    let url_safe = wire.replace('+', "-").replace('/', "_");
    for form in [&wire, &folded, &url_safe, wire.trim_end_matches('=')] {
        assert_eq!(event(form).to_json().unwrap(), json);
    }
    for (bad, error) in [("", TextError::NeitherJsonNorBase64), ("£", TextError::NeitherJsonNorBase64)] {
        assert!(matches!(parse(bad), Err(EnvelopeError::Text(e)) if e == error), "{bad:?}");
    }
    assert!(matches!(parse("/////w=="), Err(EnvelopeError::Text(TextError::NotUtf8))));
}

#[test]
fn event_is_found_behind_white_space_in_every_form() {
    let plain = r#"{"specversion":"1.0","id":"1","source":"s","type":"t"}"#;
    for before in ["", " ", "\r\n\t", "\u{feff}", "\u{feff}\n"] {
        for text in [format!("{before}{plain}\n"), format!("{before}[{plain}]\n")] {
            for encoding in [MessageEncoding::Plain, MessageEncoding::Base64] {
                assert_eq!(&*event(&to_wire(text.clone(), encoding)).id, "1", "{text:?}, {encoding:?}");
            }
            assert_eq!(encoding_of(&text), MessageEncoding::Plain, "{text:?}");
        }
    }
}

#[test]
fn malformed_events_give_distinct_reasons() {
    let cases = [
        (r#"{"specversion":"1.0","id":"1","source":"s"}"#, "type"),
        (r#"{"specversion":"1.0","id":"","source":"s","type":"t"}"#, "`id`"),
        (r#"{"specversion":"0.3","id":"1","source":"s","type":"t"}"#, "CloudEvents"),
        (r#"{"specversion":"1.0","id":"1","source":"s","type":"t","schemaversion":0}"#, "schemaversion"),
        (r#"{"specversion":"1.0","id":"1","source":"s","type":"t","attempts":-1}"#, "attempts"),
        (r#"{"specversion":"1.0","id":"1","id":"2","source":"s","type":"t"}"#, "twice"),
        (r#"{"specversion":"1.0","id":7,"source":"s","type":"t"}"#, "wrong type"),
        (r#"{"specversion":"0.3","id":7,"source":"s","type":"t"}"#, "CloudEvents"),
        (r#"{"specversion":1.0,"id":"1","source":"s","type":"t"}"#, "CloudEvents"),
        (r#"{"specversion":"1.0","id":"1","source":"s","type":"t","x":1,"x":2}"#, "twice"),
        (r#"{"specversion":"1.0","id":"1","source":"s","type":"t","key":null,"key":"x"}"#, "twice"),
        (r#"{"id":7,"id":8}"#, "twice"),
        (r#"{"x":7,"x":8}"#, "twice"),
        (r#"{"specversion":"1.0""#, "early"),
        (r#"{"specversion":"1.0","id":"1","source":"s","type":"t","data_base64":"*"}"#, "base64"),
    ];
    for (text, part) in cases {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    let many = (0..300).map(|n| format!(r#""a{n}":1,"#)).collect::<String>();
    assert!(parse(&format!(r#"{{"specversion":"1.0",{many}"id":"1"}}"#)).is_err());
}

#[test]
fn references_outside_the_framework_are_refused() {
    let good = "20261120/orders/0f0f0f0f-0000-4000-8000-000000000000";
    let sha = "00".repeat(32);
    assert!(StoredReference::parse(good, Some(1), Some(&sha)).is_ok());
    for bad in [
        "http://169.254.169.254/latest",
        "../orders/0f0f0f0f-0000-4000-8000-000000000000",
        "20261120/or%2eders/0f0f0f0f-0000-4000-8000-000000000000",
        "20261120//0f0f0f0f-0000-4000-8000-000000000000",
        "/20261120/orders/0f0f0f0f-0000-4000-8000-000000000000",
        "20261120/orders/0f0f0f0f-0000-4000-8000-000000000000?sig=x",
        "20261120/orders/0F0F0F0F-0000-4000-8000-000000000000",
        "20261120/orders/x/0f0f0f0f-0000-4000-8000-000000000000",
    ] {
        assert!(StoredReference::parse(bad, Some(1), Some(&sha)).is_err(), "{bad}");
    }
    assert!(StoredReference::parse(good, None, Some(&sha)).is_err());
    assert!(StoredReference::parse(good, Some(1), Some("xyz")).is_err());
}

#[test]
fn raw_json_of_external_producers_is_recognised() {
    for text in [r#"{"a":1}"#, r#"{"id":1,"type":[2],"data":null}"#, "[1]", "7", "true", "\"text\"", "-1"] {
        assert!(
            matches!(parse(text), Ok(Parsed::Bare(json)) if json.as_bytes() == text.as_bytes()),
            "{text}"
        );
    }
    let functions = r#"{"$AzureWebJobsParentId":"x","a":{"b": 1}}"#;
    assert!(
        matches!(parse(functions), Ok(Parsed::Bare(json)) if *json.as_bytes() == br#"{"a":{"b": 1}}"#[..])
    );
}

#[test]
fn size_limits_are_those_of_the_service() {
    let plain = MessageEncoding::Plain;
    assert!(fits(&"a".repeat(65_536), plain) && !fits(&"a".repeat(65_537), plain));
    assert!(!fits(&"&".repeat(65_536), plain) && fits(&"&".repeat(26_200), plain));
    let base64 = MessageEncoding::Base64;
    assert!(fits(&"a".repeat(49_152), base64) && !fits(&"a".repeat(49_153), base64));
}

#[test]
fn header_names_of_the_framework_cannot_be_taken() {
    let mut envelope = full();
    for bad in ["", "Tenant", "a-b", "data", "attempts", "averyverylongattribute"] {
        assert!(envelope.insert_header(bad, "x").is_err(), "{bad}");
    }
}

#[test]
fn attributes_that_are_null_are_unset() {
    let text = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","key":null,"time":null,"datacontenttype":null,
        "traceparent":null,"schemaversion":null,"dataref":null,"checkpoint":null,"lasterror":null,"attempts":null,"own":null,"data":{}}"#;
    let Parsed::Event(event) = parse(text).unwrap() else { panic!("an event") };
    assert_eq!(event.key, None);
    assert_eq!(event.version, None);
    assert_eq!(event.history.attempts, 0);
    assert_eq!(event.history.last_error, None);
    assert!(event.extensions.is_empty());
    let missing = r#"{"specversion":"1.0","id":null,"source":"/s","type":"t"}"#;
    assert!(matches!(parse(missing), Err(EnvelopeError::Missing("id"))));
    let bare = r#"{"specversion":null,"name":"x"}"#;
    assert!(matches!(parse(bare), Ok(Parsed::Bare(_))));
}

#[test]
fn array_of_one_event_is_that_event() {
    let event = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","data":1}"#;
    let Parsed::Event(found) = parse(&format!(" [ {event} ] ")).unwrap() else { panic!("an event") };
    assert_eq!(&*found.id, "1");
    assert!(matches!(parse(&format!("[{event},{event}]")), Err(EnvelopeError::Several(2))));
    for payload in ["[]", "[1,2]", "[{\"a\":1}]"] {
        assert!(matches!(parse(payload), Ok(Parsed::Bare(_))), "{payload}");
    }
}

// Other SDKs refuse an event that has an attribute with this name.
#[test]
fn attribute_of_azure_functions_is_not_written_again() {
    let read =
        event(r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","$AzureWebJobsParentId":"p"}"#);
    assert!(!read.to_json().unwrap().contains('$'));
}
