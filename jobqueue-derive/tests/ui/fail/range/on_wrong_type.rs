use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(range(1..))]
    a: String,
    #[message(range(1..))]
    b: Vec<u8>,
    #[message(range(1..))]
    c: bool,
}

fn main() {}
