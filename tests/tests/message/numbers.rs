//! Numbers in payloads arrive as they were sent.

use jobqueue::codec::{Codec as _, Json};
use jobqueue::{ErrorKind, QueueMessage};
use jobqueue_tests::jobs::in_memory;
use proptest::prelude::{any, prop_assert_eq, proptest};
use serde::{Deserialize, Serialize};

proptest! {
    // serde_json reads one in ten otherwise, unless a feature asks for exactness.
    #[test]
    fn every_finite_number_arrives_bit_for_bit(bits in any::<u64>()) {
        let (large, small) = (f64::from_bits(bits), f32::from_bits(bits as u32));
        if large.is_finite() {
            let read: f64 = Json::decode(&Json::encode(&large).unwrap()).unwrap();
            prop_assert_eq!(read.to_bits(), bits);
        }
        if small.is_finite() {
            let read: f32 = Json::decode(&Json::encode(&small).unwrap()).unwrap();
            prop_assert_eq!(read.to_bits(), bits as u32);
        }
    }
}

#[test]
fn numbers_of_everyday_arrive_as_they_were_sent() {
    for number in [0.999_999_999_999_999_9, 0.945_270_695_553_922_3, 94.082_309_060_780_65, -0.0] {
        let read: f64 = Json::decode(&Json::encode(&number).unwrap()).unwrap();
        assert_eq!(read.to_bits(), f64::to_bits(number), "{number}");
    }
}

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "limits", kind = "limit")]
struct Limit {
    #[message(range(0.0..))]
    euros: Option<f64>,
}

#[tokio::test(start_paused = true)]
async fn send_refuses_a_number_that_json_cannot_express() {
    let queue = in_memory().queue::<Limit>().await.unwrap();
    let error = queue.send(&Limit { euros: Some(f64::INFINITY) }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(queue.is_empty().await.unwrap());
    queue.send(&Limit { euros: None }).await.unwrap();
}
