use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(url, email)]
    a: String,
}

fn main() {}
