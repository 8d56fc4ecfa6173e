use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(url = true)]
    name: String,
}

fn main() {}
