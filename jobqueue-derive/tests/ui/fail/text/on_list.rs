use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(url)]
    a: Vec<String>,
}

fn main() {}
