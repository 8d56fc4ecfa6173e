use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(with = no_such_rule)]
    n: u32,
}

fn main() {}
