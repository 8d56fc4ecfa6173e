use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(range(1..=2, 4..=5))]
    a: u8,
}

fn main() {}
