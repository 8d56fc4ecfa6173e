use jobqueue::{QueueMessage, Validate};
use serde::{Deserialize, Serialize};

use jobqueue::codec::{decode_message, encode_message};
use std::collections::BTreeMap;

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "envelopes", kind = "envelope")]
struct Envelope<T> {
    inner: T,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "envelopes", kind = "envelope.nested")]
struct Nested<K: Ord, T = Part> {
    #[message(nested, length(1..))]
    by_key: BTreeMap<K, Vec<T>>,
    #[message(key)]
    key: K,
}

#[derive(Serialize, Deserialize, Validate)]
struct Tree<T> {
    #[message(nested)]
    value: T,
    #[message(nested)]
    children: Vec<Tree<T>>,
}

#[derive(Serialize, Deserialize, Validate)]
struct Part {
    #[message(range(1..))]
    n: u8,
}

#[test]
fn compiles_and_checks() {
    let bytes = encode_message(&Envelope { inner: 3u8 }).unwrap();
    assert_eq!(decode_message::<Envelope<u8>>(1, &bytes).unwrap().inner, 3);

    let nested = Nested { by_key: BTreeMap::from([(7, vec![Part { n: 0 }])]), key: 9 };
    assert_eq!(nested.key().unwrap(), "9");
    assert_eq!(nested.validate().unwrap_err().to_string(), "by_key[\"7\"][0].n: must be at least 1");

    let leaf = Tree { value: Part { n: 0 }, children: vec![] };
    let tree = Tree { value: Part { n: 1 }, children: vec![leaf] };
    assert_eq!(tree.validate().unwrap_err().to_string(), "children[0].value.n: must be at least 1");
}
