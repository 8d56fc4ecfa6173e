use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(url)]
    a: u32,
    #[message(email)]
    b: Option<u32>,
    #[message(pattern = "a")]
    c: f64,
}

fn main() {}
