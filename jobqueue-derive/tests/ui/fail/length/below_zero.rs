use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(length(..0))]
    a: String,
}

fn main() {}
