use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(range('a'..='z'))]
    a: char,
    #[message(range("a"..))]
    b: u8,
}

fn main() {}
