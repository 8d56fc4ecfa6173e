use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(non_empty, url)]
    a: (),
}

fn main() {}
