use std::thread;

use fe2o3_amqp::types::messaging::message::DecodeIntoMessage as _;
use fe2o3_amqp::types::messaging::{Body, Message};
use fe2o3_amqp::types::primitives::Value;
use serde_amqp::read::SliceReader;

use super::*;

/// A stack that is large enough for 32 levels in an unoptimized build.
const STACK_BYTES: usize = 512 << 10;

/// Returns a value nested in `depth` containers; `begin` returns the head of a container for a content of
/// that many bytes.
fn nested(depth: usize, begin: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    // Built from the inside out, in reverse.
    let mut bytes = vec![0x40];
    for _ in 0..depth {
        let head = begin(u32::try_from(bytes.len()).unwrap());
        bytes.extend(head.into_iter().rev());
    }
    bytes.reverse();
    bytes
}

fn compound(code: u8, length: u32, more: &[u8]) -> Vec<u8> {
    let count = 1 + u32::try_from(more.len()).unwrap();
    let mut head = vec![code];
    head.extend((length + 3 + count).to_be_bytes());
    head.extend(count.to_be_bytes());
    head.extend(more);
    head
}

fn list(length: u32) -> Vec<u8> {
    compound(0xD0, length, &[])
}

/// A map with the key `null`.
fn map(length: u32) -> Vec<u8> {
    compound(0xD1, length, &[0x40])
}

fn described(_: u32) -> Vec<u8> {
    vec![DESCRIBED, 0x44]
}

fn section(code: u8, content: &[u8]) -> Vec<u8> {
    [&[DESCRIBED, 0x53, code], content].concat()
}

/// Decodes a message as the client does, on a small stack, where too deep a recursion ends the process.
fn decoded(mut bytes: Vec<u8>) -> Result<Message<Body<Value>>, String> {
    if let Some(at) = Nesting::default().take(&bytes) {
        bytes[at] = NO_TYPE;
    }
    let decode = move || {
        let message = Body::decode_message_from_reader(SliceReader::new(&bytes));
        message.map_err(|error: serde_amqp::Error| error.to_string())
    };
    thread::Builder::new().stack_size(STACK_BYTES).spawn(decode).unwrap().join().unwrap()
}

#[test]
fn each_kind_of_container_counts_one_level() {
    for begin in [list, map, described] {
        // The section counts as a level.
        let fits = section(0x77, &nested(MAX_DEPTH - 1, begin));
        assert_eq!(Nesting::default().take(&fits), None);
        decoded(fits).unwrap();
        for depth in [MAX_DEPTH, 50_000] {
            let bytes = section(0x77, &nested(depth, begin));
            let level = begin(0).len();
            let end = 3 + level * MAX_DEPTH;
            let place = Nesting::default().take(&bytes).unwrap();
            assert!((end - level + 1..=end).contains(&place), "{depth}: {place}");
            assert!(decoded(bytes).is_err());
        }
    }
}

#[test]
fn each_section_is_looked_through() {
    let body = section(0x75, &[0xA0, 1, b'x']);
    let deep = nested(50_000, list);
    let fields = [&compound(0xD1, u32::try_from(deep.len()).unwrap(), &[0x43])[..], &deep].concat();
    for code in [0x70, 0x71, 0x72, 0x73, 0x74, 0x76, 0x78] {
        let content = if matches!(code, 0x70 | 0x73 | 0x76) { &deep } else { &fields };
        let section = section(code, content);
        let message =
            if code == 0x78 { [&body[..], &section].concat() } else { [&section[..], &body].concat() };
        assert!(Nesting::default().take(&message).is_some(), "{code:x}");
        assert!(decoded(message).is_err(), "{code:x}");
    }
}

#[test]
fn message_may_arrive_in_pieces() {
    let texts = [&[0xF0, 0, 0, 0, 9, 0, 0, 0, 2, 0xA1, 1][..], b"x\x01y", &[0xB1, 0, 0, 0, 2], b"\xD0\xD0"];
    let mut bytes = section(0x77, &compound(0xD0, 100, &[0x43; 2]));
    bytes.extend([texts.concat(), vec![0x82], vec![0xD0; 8], nested(40, map)].concat());
    let whole = Nesting::default().take(&bytes);
    assert!(whole.is_some_and(|at| at > 200), "{whole:?}");
    for piece in 1..20 {
        let (mut nesting, mut places) = (Nesting::default(), Vec::new());
        for (number, bytes) in bytes.chunks(piece).enumerate() {
            places.extend(nesting.take(bytes).map(|at| number * piece + at));
        }
        assert_eq!(places, [whole.unwrap()], "pieces of {piece}");
    }
}

#[test]
fn arrays_of_single_values_are_read() {
    let values = |code: u8, count: u8, content: &[u8]| {
        let head = [0xE0, u8::try_from(content.len()).unwrap() + 2, count, code];
        section(0x77, &[&head, content].concat())
    };
    let good = [
        values(0x98, 2, &[0xD0; 32]),
        values(0x83, 1, &[0xD0; 8]),
        values(0x40, 200, &[]),
        values(0xA3, 2, b"\x01a\x02\xD0\xD0"),
    ];
    for bytes in good {
        let followed = [bytes, section(0x75, &nested(50_000, list))].concat();
        let refused = Nesting::default().take(&followed);
        assert!(refused.is_some_and(|at| at > followed.len() - 450_000), "{refused:?}");
    }
    // Indices at which the client would go wrong: it would take the type of the array for each inner value.
    for code in [0x00, 0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0] {
        assert_eq!(Nesting::default().take(&values(code, 1, &[0; 9])), Some(6), "{code:x}");
    }
    assert_eq!(Nesting::default().take(&values(0xA1, 0, &[])), Some(6), "an empty array with a type");
    assert_eq!(Nesting::default().take(&section(0x77, &[0xE0, 1, 0])), None);
}

// The client reads such maps without their codes: the bytes of a text are in fact the head of the next map.
#[test]
fn map_in_an_array_does_not_hide_other_maps() {
    let head = [0xA1, 6, 0, 0, 0, 0, 0, 2];
    let content = head.repeat(50_000);
    let length = u32::try_from(content.len()).unwrap();
    let mut array = vec![0xF0];
    array.extend((length + 5).to_be_bytes());
    array.extend([0, 0, 0, 1, 0xD1]);
    let message = section(0x77, &[array, content].concat());
    assert!(decoded(message).is_err());
}

#[test]
fn map_with_half_a_pair_is_not_read_further() {
    assert_eq!(Nesting::default().take(&section(0x77, &[0xC1, 2, 1, 0x40])), Some(6));
    assert_eq!(Nesting::default().take(&section(0x77, &[0xC1, 3, 2, 0x40, 0x40])), None);
}

#[test]
fn no_mixture_overflows_the_stack_of_the_client() {
    let mut seed: u64 = 0x9E37_79B9_7F4A_7C15;
    println!("seed {seed:x}");
    let mut random = move |below: u8| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        u8::try_from((seed >> 32) % u64::from(below)).unwrap()
    };
    for _ in 0..200 {
        let mut bytes = vec![DESCRIBED, 0x53, 0x70 + random(9)];
        for _ in 0..10_000 {
            let (size, count) = (4 + random(250), random(4));
            match random(12) {
                0 => bytes.extend([DESCRIBED, 0x53, 0x70 + random(9)]),
                1 => bytes.extend([0xC0, size, count]),
                2 => bytes.extend([0xC1, size, count & !1]),
                3 => bytes.extend([0xD0, 0, 0, 0, size, 0, 0, 0, count]),
                4 => bytes.extend([0xD1, 0, 0, 0, size, 0, 0, 0, count & !1]),
                5 => bytes.extend([0xE0, size, count, [0x40, 0x53, 0xA1, 0xD1][usize::from(random(4))]]),
                6 => bytes.extend([0xF0, 0, 0, 0, size, 0, 0, 0, count, 0xD0]),
                7 => bytes.extend([0xA1, 1, b'x']),
                8 => bytes.extend([0x53, random(255)]),
                _ => bytes.push([0x40, 0x41, 0x43, 0x44, 0x45][usize::from(random(5))]),
            }
        }
        // Only a crash would be a failure.
        let _ = decoded(bytes);
    }
}
