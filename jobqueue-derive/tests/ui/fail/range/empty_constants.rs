use jobqueue::Validate;

const LOW: u32 = 5;

#[derive(Validate)]
struct Part {
    #[message(range(LOW..=4))]
    n: u32,
}

fn main() {}
