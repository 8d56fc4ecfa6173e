use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(range(5..=4))]
    a: u8,
    #[message(range(5..5))]
    b: u8,
    #[message(range(1.0..=0.5))]
    c: f64,
    #[message(range(-1..=-2))]
    d: i8,
}

fn main() {}
