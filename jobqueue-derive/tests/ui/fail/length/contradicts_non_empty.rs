use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(non_empty, length(0..=5))]
    a: String,
    #[message(non_empty, length(..=5))]
    b: String,
}

fn main() {}
