use std::collections::HashMap;

use jobqueue::Validate;

struct Plain;

#[derive(Validate)]
struct Part {
    #[message(nested)]
    one: Plain,
    #[message(nested)]
    many: HashMap<String, Vec<Plain>>,
}

fn main() {}
