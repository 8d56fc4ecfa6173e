use jobqueue::Validate;

#[derive(Validate)]
union Part {
    a: u32,
    b: f32,
}

fn main() {}
