use jobqueue::Validate;

struct Celsius;

#[derive(Validate)]
struct Part {
    #[message(url)]
    a: Celsius,
}

fn main() {}
