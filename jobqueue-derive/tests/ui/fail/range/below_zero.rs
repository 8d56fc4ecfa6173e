use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(range(..0))]
    n: u32,
}

fn main() {}
