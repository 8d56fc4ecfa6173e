use jobqueue::Validate;

fn even(n: &u32) -> bool {
    n % 2 == 0
}

#[derive(Validate)]
struct Part {
    #[message(with = even)]
    n: u32,
}

fn main() {}
