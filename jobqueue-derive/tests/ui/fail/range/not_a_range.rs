use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(range(5))]
    a: u8,
    #[message(range())]
    b: u8,
    #[message(range = 5)]
    c: u8,
}

fn main() {}
