use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(length(1..))]
    a: u32,
    #[message(non_empty)]
    b: f32,
    #[message(length(1..))]
    c: bool,
}

fn main() {}
