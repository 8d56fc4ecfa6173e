use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jobqueue::Validate;

#[derive(Validate)]
struct Leaf {
    #[message(range(1..))]
    n: u8,
}

#[derive(Validate)]
struct Root<'a> {
    #[message(nested)]
    maps: BTreeMap<&'a str, HashMap<u32, Option<Arc<[Leaf]>>>>,
    #[message(nested)]
    borrowed: &'a Leaf,
}

#[test]
fn compiles_and_checks() {
    let leaves: Arc<[Leaf]> = Arc::new([Leaf { n: 1 }, Leaf { n: 0 }]);
    let inner = HashMap::from([(7, Some(leaves)), (8, None)]);
    let root = Root { maps: BTreeMap::from([("a", inner)]), borrowed: &Leaf { n: 0 } };
    let violations = root.validate().unwrap_err();
    let paths: Vec<_> = violations.iter().map(|violation| violation.path()).collect();
    assert_eq!(paths, [r#"maps["a"]["7"][1].n"#, "borrowed.n"]);
}
