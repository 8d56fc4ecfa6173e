use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(pattern = "^[a-z")]
    a: String,
    #[message(pattern = "a(?=b)")]
    b: String,
    #[message(pattern = "a{2,1}")]
    c: String,
}

fn main() {}
