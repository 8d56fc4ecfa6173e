use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(range(0..=300))]
    a: u8,
    #[message(range(-1..))]
    b: u32,
    #[message(range(..=128))]
    c: Option<i8>,
    #[message(range(..1e39))]
    d: f32,
    #[message(range(..256))]
    e: u8,
}

fn main() {}
