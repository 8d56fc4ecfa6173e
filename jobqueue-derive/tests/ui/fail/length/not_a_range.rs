use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(length(5))]
    a: String,
}

fn main() {}
