use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(range(..))]
    a: u8,
}

fn main() {}
