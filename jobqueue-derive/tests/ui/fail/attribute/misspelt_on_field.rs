use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(lenght(1..))]
    name: String,
}

fn main() {}
