use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(length(..))]
    a: String,
}

fn main() {}
