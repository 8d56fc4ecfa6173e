//! Numbers in payloads arrive as they were sent.

use jobqueue::codec::{Codec as _, Json};
use proptest::prelude::{any, prop_assert_eq, proptest};

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
