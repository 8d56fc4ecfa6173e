use jobqueue::Validate;

#[derive(Validate)]
#[message(queue = "thumbnails")]
struct Part {
    #[message(key)]
    name: String,
}

fn main() {}
