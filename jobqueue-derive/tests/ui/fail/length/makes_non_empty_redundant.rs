use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(non_empty, length(1..))]
    a: String,
}

fn main() {}
