use jobqueue::Validate;

struct Celsius;

#[derive(Validate)]
struct Part {
    #[message(length(1..))]
    a: Celsius,
    #[message(non_empty)]
    b: Option<Celsius>,
}

fn main() {}
