//! Promises about message texts: the allowed texts, which come back unchanged.

use crate::prelude::*;

/// Checks that each text comes back unchanged from a peek, a get and an update.
async fn survive(subject: &Subject, texts: &[&str]) -> Result<(), Broken> {
    let queue = subject.queue().await?;
    for text in texts {
        round_trip(&queue, text).await?;
    }
    Ok(())
}

async fn round_trip(queue: &TestQueue, text: &str) -> Result<(), Broken> {
    queue.put(text).await?;
    let peeked = queue.peek(1).await?.pop().map(|message| message.text);
    ensure_eq!(peeked, Some(Ok(text.to_owned())), "text by peek");
    let got = queue.get_one(LONG_TIMEOUT).await?;
    ensure_eq!(got.text.as_deref(), Ok(text), "text by get");
    let updated = queue.update_text(&got.message, "other").await?;
    let other = with_receipt(&got.message, &updated.receipt);
    let updated = queue.update_text(&other, text).await?;
    let again = with_receipt(&got.message, &updated.receipt);
    queue.update(&again, std::time::Duration::ZERO).await?;
    let got = queue.get_one(LONG_TIMEOUT).await?;
    ensure_eq!(got.text.as_deref(), Ok(text), "text by get after update");
    queue.delete(&got.message).await?;
    Ok(())
}

promises! { "text";
    /// Text with markup, entities and quotes comes back unchanged.
    async fn survives_with_markup(subject) {
        survive(subject, &[
            r#"{"a":"<b>&amp;</b>","c":'d'}"#,
            "]]> <![CDATA[ x ]]> <!-- c --> <?pi?>",
            "&lt;&#13;&unknown; <QueueMessage><MessageText>x</MessageText></QueueMessage>",
        ]).await?;
    }

    /// White space at the ends and in the middle comes back unchanged, including carriage returns.
    async fn survives_with_white_space(subject) {
        survive(subject, &["  a  ", "\n\ta\n", "a\r\nb\rc\n", " ", "\r"]).await?;
    }

    /// Text in any script comes back unchanged.
    async fn survives_in_any_script(subject) {
        survive(subject, &[
            "Grüße, 世界, שלום, 🦀👩‍👩‍👧",
            "e\u{301} is not \u{e9}",
            "\u{7F}\u{85}\u{A0}\u{2028}\u{D7FF}\u{E000}\u{FFFD}\u{10FFFF}",
        ]).await?;
    }

    /// Text that looks like base64, a number or a null comes back unchanged.
    async fn is_not_interpreted(subject) {
        survive(subject, &["aGVsbG8=", "007", "null", "true", "%41+%20", "\u{FEFF}bom"]).await?;
    }

    /// A text may be empty.
    async fn may_be_empty(subject) {
        survive(subject, &[""]).await?;
    }

    /// A text of 65,536 bytes is accepted, and comes back unchanged.
    async fn may_have_64_kib(subject, queue) {
        let text = "0123456789abcdef".repeat(4096);
        queue.put(&text).await?;
        ensure!(queue.get_one(LONG_TIMEOUT).await?.text.as_deref() == Ok(&*text), "the text came back changed");
    }

    /// A text of 65,537 bytes is refused as too large.
    async fn may_not_have_more_than_64_kib(subject, queue) {
        refused(queue.put(&"x".repeat(65_537)).await, &[K::TooLarge])?;
        ensure_eq!(queue.count().await?, 0, "messages");
    }

    /// The size of a text is counted in bytes, not in characters.
    async fn is_counted_in_bytes(subject, queue) {
        refused(queue.put(&"€".repeat(21_846)).await, &[K::TooLarge])?;
        queue.put(&"€".repeat(21_845)).await?;
    }

    /// A text that is too large once escaped for XML is refused as too large.
    async fn may_not_outgrow_a_request_when_escaped(subject, queue) {
        let deviates = subject.deviates(Deviation::EscapedSizeNotChecked);
        refused_unless(deviates, queue.put(&"&".repeat(65_536)).await, &[K::TooLarge])?;
    }

    /// Characters that XML 1.0 cannot carry are refused.
    async fn may_not_have_illegal_characters(subject, queue) {
        let deviates = subject.deviates(Deviation::IllegalCharactersAccepted);
        for text in ["a\0b", "\u{1}", "\u{B}", "\u{1F}", "\u{1B}[2J", "\u{FFFE}", "\u{FFFF}"] {
            refused_unless(deviates, queue.put(text).await, &[K::InvalidInput])?;
        }
    }
}
