use super::*;

fn one(fields: &str) -> RawMessage {
    let body = format!(
        "<?xml version=\"1.0\"?><QueueMessagesList><QueueMessage>{fields}</QueueMessage></QueueMessagesList>"
    );
    let mut answer = read_messages(body.as_bytes());
    assert_eq!(answer.broken, None);
    assert_eq!(answer.messages.len(), 1);
    answer.messages.remove(0)
}

#[test]
fn message_is_read_completely() {
    let message =
        one("<MessageId>1</MessageId><InsertionTime>i</InsertionTime><ExpirationTime>e</ExpirationTime>\
         <PopReceipt>AgA+/=</PopReceipt><TimeNextVisible>n</TimeNextVisible><DequeueCount>2</DequeueCount>\
         <MessageText>a &amp; &lt;b&gt;&#xD;&#10; <![CDATA[<raw>]]></MessageText>");
    assert_eq!(message.id.as_deref(), Some("1"));
    assert_eq!(message.receipt.as_deref(), Some("AgA+/="));
    assert_eq!(message.text, Some(Ok("a & <b>\r\n <raw>".to_owned())));
    assert_eq!(message.dequeue_count.as_deref(), Some("2"));
}

/// A new or missing element in a message affects neither that message nor the others.
#[test]
fn odd_elements_are_passed_over() {
    let message = one(
        "<New a='1'><MessageText>inner</MessageText></New><MessageId>1</MessageId><MessageText/><Other/>",
    );
    assert_eq!(message.text, Some(Ok(String::new())));
    assert_eq!(message.id.as_deref(), Some("1"));
    assert_eq!(message.receipt, None);
    assert_eq!(message.dequeue_count, None);
}

/// An unreadable text affects only its own message.
#[test]
fn unreadable_text_does_not_affect_other_messages() {
    let body = [
        b"<QueueMessagesList><QueueMessage><MessageText>".as_slice(),
        b"a\x01b",
        b"</MessageText></QueueMessage><QueueMessage><MessageText>",
        b"a\xFFb",
        b"</MessageText></QueueMessage><QueueMessage><MessageText>",
        b"&#xFFFF;",
        b"</MessageText></QueueMessage><QueueMessage><MessageText>",
        b"&nothing;",
        b"</MessageText></QueueMessage><QueueMessage><MessageText>good</MessageText></QueueMessage></QueueMessagesList>",
    ]
    .concat();
    let answer = read_messages(&body);
    assert_eq!(answer.messages.len(), 5);
    let texts: Vec<_> = answer.messages.into_iter().map(|message| message.text.unwrap()).collect();
    assert!(texts[..4].iter().all(Result::is_err), "{texts:?}");
    assert_eq!(texts[4].as_deref(), Ok("good"));
}

#[test]
fn incomplete_answer_keeps_its_complete_messages() {
    let whole = "<QueueMessage><MessageId>1</MessageId></QueueMessage>";
    let answer = read_messages(format!("<QueueMessagesList>{whole}<QueueMessage><Mess").as_bytes());
    assert_eq!(answer.messages.len(), 1);
    assert!(answer.broken.is_some());
    for nonsense in ["", "????", "<a><b></a></b>", "<!DOCTYPE x [<!ENTITY e 'x'>]><a/>"] {
        let answer = read_messages(nonsense.as_bytes());
        assert!(answer.messages.is_empty() && answer.broken.is_some(), "{nonsense:?} {answer:?}");
    }
}

#[test]
fn empty_list_is_no_failure() {
    for list in
        ["<QueueMessagesList/>", "\u{FEFF}<?xml version=\"1.0\"?><QueueMessagesList></QueueMessagesList>"]
    {
        let answer = read_messages(list.as_bytes());
        assert!(answer.messages.is_empty() && answer.broken.is_none(), "{list:?} {answer:?}");
    }
}

/// A written text is read back byte for byte.
#[test]
fn texts_survive_the_way_there_and_back() {
    for text in ["", "  ", "\r\n\t x", "]]>", "&amp;<>\"'", "ü€😀\u{FFFD}\u{85}\u{7F}"] {
        let body = write_message(text);
        let body = format!("<QueueMessagesList>{}</QueueMessagesList>", body.split_once("?>").unwrap().1);
        let read = read_messages(body.as_bytes()).messages.remove(0);
        assert_eq!(read.text, Some(Ok(text.to_owned())));
    }
}
