//! The paths of violations.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use jobqueue::Validate;

use super::broken;

#[derive(Validate, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Slice {
    #[message(non_empty)]
    uri: String,
}

pub(super) fn slice(uri: &str) -> Slice {
    Slice { uri: uri.into() }
}

#[test]
fn paths_lead_through_lists_maps_and_pointers() {
    #[derive(Validate)]
    struct Mosaic {
        #[message(nested)]
        slices: Vec<Slice>,
        #[message(nested)]
        array: [Slice; 2],
        #[message(nested)]
        by_name: BTreeMap<String, Vec<Slice>>,
        #[message(nested)]
        by_number: HashMap<u64, Slice>,
        #[message(nested)]
        queue: VecDeque<Option<Slice>>,
        #[message(nested)]
        sorted: BTreeSet<Slice>,
        #[message(nested)]
        set: HashSet<Slice>,
        #[message(nested)]
        boxed: Box<Slice>,
    }
    let mosaic = Mosaic {
        slices: vec![slice("a"), slice("a"), slice("a"), slice("")],
        array: [slice("a"), slice("")],
        by_name: BTreeMap::from([("a \"b\"".to_owned(), vec![slice("a"), slice("")])]),
        by_number: HashMap::from([(7, slice(""))]),
        queue: [None, Some(slice(""))].into(),
        sorted: BTreeSet::from([slice("")]),
        set: HashSet::from([slice("")]),
        boxed: Box::new(slice("")),
    };
    let expected = [
        "slices[3].uri non_empty",
        "array[1].uri non_empty",
        r#"by_name["a \"b\""][1].uri non_empty"#,
        r#"by_number["7"].uri non_empty"#,
        "queue[1].uri non_empty",
        "sorted[0].uri non_empty",
        "set[0].uri non_empty",
        "boxed.uri non_empty",
    ];
    assert_eq!(broken(&mosaic), expected);
}

#[test]
fn paths_name_what_is_on_the_wire() {
    #[derive(Validate, serde::Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Renamed {
        #[message(range(1..))]
        tile_size: u8,
        #[serde(rename = "URI")]
        #[message(range(1..))]
        address: u8,
        #[serde(rename(serialize = "out", deserialize = "in"))]
        #[message(range(1..))]
        both: u8,
        #[message(range(1..))]
        r#type: u8,
        #[serde(flatten)]
        #[message(nested)]
        rest: Rest,
        #[message(nested)]
        pair: Pair,
    }
    #[derive(Validate, serde::Serialize)]
    struct Rest {
        #[message(range(1..))]
        more: u8,
    }
    #[derive(Validate, serde::Serialize)]
    struct Pair(#[message(range(1..))] u8, #[message(range(1..))] u8);

    let value =
        Renamed { tile_size: 0, address: 0, both: 0, r#type: 0, rest: Rest { more: 0 }, pair: Pair(1, 0) };
    let paths = ["tileSize", "URI", "out", "type", "more", "pair[1]"];
    assert_eq!(broken(&value), paths.map(|path| format!("{path} range")));
    // Not only what the attribute says, but what serde does.
    let wire = serde_json::to_value(&value).unwrap();
    for path in &paths[..5] {
        assert!(wire.get(path).is_some(), "{path} in {wire}");
    }
}
