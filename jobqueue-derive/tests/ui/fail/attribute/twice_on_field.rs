use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(range(1..), range(..9))]
    n: u8,
}

fn main() {}
