use jobqueue::Validate;

#[derive(Validate)]
struct Part<T> {
    #[message(range(1..))]
    n: T,
}

fn main() {}
