use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(range(0.5..))]
    a: u8,
}

fn main() {}
