use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(pattern = "")]
    a: String,
}

fn main() {}
