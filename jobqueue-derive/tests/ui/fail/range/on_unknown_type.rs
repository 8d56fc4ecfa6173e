use jobqueue::Validate;

struct Celsius;

#[derive(Validate)]
struct Part {
    #[message(range(1..))]
    n: Celsius,
}

fn main() {}
