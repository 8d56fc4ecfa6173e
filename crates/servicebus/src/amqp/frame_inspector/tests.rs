use fe2o3_amqp::types::definitions::Handle;
use fe2o3_amqp::types::messaging::{Accepted, DeliveryState};

use super::*;

fn attached(role: Role) -> FrameEvents {
    let attach = Attach {
        name: "link".to_owned(),
        handle: Handle(4),
        role,
        snd_settle_mode: Default::default(),
        rcv_settle_mode: Default::default(),
        source: None,
        target: None,
        unsettled: None,
        incomplete_unsettled: false,
        initial_delivery_count: Some(0),
        max_message_size: None,
        offered_capabilities: None,
        desired_capabilities: None,
        properties: None,
    };
    let events = FrameEvents::default();
    assert_eq!(events.frame(1, ATTACH, &serde_amqp::to_vec(&attach).unwrap()), None);
    events
}

#[tokio::test(start_paused = true)]
async fn nothing_is_read_after_the_clients_close() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let (ours, _peer) = tokio::io::duplex(64);
    let (mut inspector, _) = FrameInspector::new(ours);
    inspector.write_all(&[0, 0, 0, 11, 2, 0, 0, 0, 0, 0x53, 0x18]).await.unwrap();
    // The client would keep a processor busy until the answer.
    let mut buffer = [0; 8];
    let read = tokio::time::timeout(Duration::from_secs(1), inspector.read(&mut buffer)).await;
    assert_eq!(read.unwrap().unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn too_long_frame_ends_the_connection_before_it_is_collected() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    for head in [[0xFF; 4], *b"HTTP", [0, 1, 0, 1]] {
        let (ours, mut peer) = tokio::io::duplex(64);
        let (mut inspector, _) = FrameInspector::new(ours);
        peer.write_all(&head).await.unwrap();
        let read = tokio::time::timeout(Duration::from_secs(1), inspector.read(&mut [0; 8])).await;
        let error = read.expect("waits for the rest").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{head:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn write_without_progress_times_out() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let (ours, mut peer) = tokio::io::duplex(64);
    let (mut inspector, _) = FrameInspector::new(ours);
    let begun = tokio::time::Instant::now();
    let writing = tokio::time::timeout(IDLE_TIMEOUT * 10, inspector.write_all(&[0; 256]));
    let (written, _) = tokio::join!(writing, async {
        sleep(IDLE_TIMEOUT / 2).await;
        peer.read_exact(&mut [0; 64]).await
    });
    assert_eq!(written.expect("waits for ever").unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert_eq!(begun.elapsed(), IDLE_TIMEOUT * 3 / 2, "from the last progress on");
    assert!(inspector.write_all(&[0]).await.is_err(), "at once");
}

fn flow() -> Flow {
    Flow {
        next_incoming_id: Some(1),
        incoming_window: 10,
        next_outgoing_id: 1,
        outgoing_window: 10,
        handle: Some(Handle(4)),
        delivery_count: Some(7),
        link_credit: Some(0),
        available: None,
        drain: false,
        echo: false,
        properties: None,
    }
}

#[test]
fn client_does_not_see_delivery_count_of_a_sending_peer() {
    let text = serde_amqp::to_vec(&flow()).unwrap();
    let shown = attached(Role::Sender).frame(1, FLOW, &text).expect("another body");
    let shown: Flow = serde_amqp::from_slice(&shown).unwrap();
    assert_eq!(shown.handle, None);
    assert_eq!(shown.delivery_count, None);
    assert_eq!(shown.link_credit, None);
    assert_eq!(shown.incoming_window, 10);
    // This flow grants credit for the client's own transfers.
    assert_eq!(attached(Role::Receiver).frame(1, FLOW, &text), None);
}

#[test]
fn only_the_answer_to_a_drain_ends_it() {
    let events = attached(Role::Sender);
    let link = || events.link(events.find("link").unwrap());
    let _ = events.frame(1, FLOW, &serde_amqp::to_vec(&flow()).unwrap());
    assert_eq!(link().drained_since(0), None);
    assert_eq!(link().count, 0);
    assert_eq!(link().drained, 0);
    let _ = events.frame(1, FLOW, &serde_amqp::to_vec(&Flow { drain: true, ..flow() }).unwrap());
    assert_eq!(link().drained_since(0), Some(0));
    assert_eq!(link().count, 7);
    assert_eq!(link().drained, 7);
}

/// Its number may belong to another link by now.
#[test]
fn link_of_a_channel_that_has_ended_is_not_found() {
    let events = attached(Role::Sender);
    assert!(events.find("link").is_some());
    let _ = events.frame(1, BEGIN, &[]);
    assert_eq!(events.find("link"), None);
}

#[test]
fn ticks_are_instants() {
    assert_eq!(of_ticks(UNIX_EPOCH_TICKS), Some(SystemTime::UNIX_EPOCH));
    let second = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    assert_eq!(of_ticks(UNIX_EPOCH_TICKS + 10_000_000), Some(second));
    assert_eq!(of_ticks(i64::MIN), None);
    assert_eq!(of_ticks(0), None);
}

// Every number of the range was looked up, four billion of them.
#[test]
fn range_of_settlements_visits_only_awaited_deliveries() {
    let events = FrameEvents::default();
    let mut answered = events.watch((1, 7));
    let disposition = Disposition {
        role: Role::Sender,
        first: 0,
        last: Some(u32::MAX),
        settled: true,
        state: Some(DeliveryState::Accepted(Accepted {})),
        batchable: false,
    };
    assert_eq!(events.frame(1, DISPOSITION, &serde_amqp::to_vec(&disposition).unwrap()), None);
    assert!(matches!(answered.try_recv(), Ok(Ok(()))));
}

// They stayed until their channel number was reused.
#[test]
fn settlements_whose_callers_have_gone_are_forgotten() {
    let events = FrameEvents::default();
    for delivery in 0..1_000 {
        drop(events.watch((1, delivery)));
    }
    assert!(lock(&events.inner).waiting.len() < 3);
}

fn transfer(delivery: Option<u32>, more: bool, payload: &[u8]) -> Vec<u8> {
    let transfer = Transfer {
        handle: Handle(4),
        delivery_id: delivery,
        delivery_tag: delivery.map(|_| vec![7; 16].into()),
        message_format: Some(0),
        settled: None,
        more,
        rcv_settle_mode: None,
        state: None,
        resume: false,
        aborted: false,
        batchable: false,
    };
    [serde_amqp::to_vec(&transfer).unwrap(), payload.to_vec()].concat()
}

// A body of 10,000 nested lists ended the process.
#[test]
fn too_deep_message_is_made_undecodable_wherever_its_frames_end() {
    let good = b"\0\x53\x75\xA0\x02\xD0\xD0";
    let deep = [&b"\0\x53\x77"[..], &[0xC0, 0xFF, 1].repeat(40)].concat();
    for end in 1..deep.len() {
        let events = attached(Role::Sender);
        let take = |body: &[u8]| events.frame(1, TRANSFER, body);
        assert_eq!(take(&transfer(Some(5), false, good)), None);
        let frames = [transfer(Some(6), true, &deep[..end]), transfer(None, false, &deep[end..])];
        let shown: Vec<_> = frames.iter().map(|frame| take(frame).unwrap_or_else(|| frame.clone())).collect();
        let changed: Vec<_> =
            frames.concat().into_iter().zip(shown.concat()).filter(|(was, is)| was != is).collect();
        assert_eq!(changed, [(0xC0, NO_TYPE)], "{end}");
        assert_eq!(take(&transfer(Some(7), false, good)), None, "{end}");
        let too_deep = [5, 6, 6, 7].map(|delivery| events.was_too_deep((1, delivery)));
        assert_eq!(too_deep, [false, true, false, false], "{end}");
        assert_eq!(events.link(events.find("link").unwrap()).count, 3);
    }
}
