use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(length(-1..))]
    a: String,
}

fn main() {}
