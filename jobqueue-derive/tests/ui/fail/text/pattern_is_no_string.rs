use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(pattern = 5)]
    a: String,
}

fn main() {}
