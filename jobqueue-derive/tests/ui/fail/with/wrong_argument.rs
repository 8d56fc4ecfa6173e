use jobqueue::Validate;

fn even(n: &u64) -> Result<(), &'static str> {
    if n % 2 == 0 { Ok(()) } else { Err("must be even") }
}

#[derive(Validate)]
struct Part {
    #[message(with = even)]
    n: u32,
}

fn main() {}
