use jobqueue::Validate;

fn check(_: &u32) -> Result<(), String> {
    Ok(())
}

#[derive(Validate)]
#[message(validate = check)]
struct Part {
    n: u32,
}

fn main() {}
