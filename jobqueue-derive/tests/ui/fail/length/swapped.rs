use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(length(3..=2))]
    a: String,
}

fn main() {}
