use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(nested)]
    a: u32,
    #[message(nested)]
    b: Vec<String>,
    #[message(nested)]
    c: Option<bool>,
}

fn main() {}
