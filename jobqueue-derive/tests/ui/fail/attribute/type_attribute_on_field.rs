use jobqueue::Validate;

#[derive(Validate)]
struct Part {
    #[message(queue = "thumbnails")]
    name: String,
}

fn main() {}
