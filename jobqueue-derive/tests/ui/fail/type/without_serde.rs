use jobqueue::QueueMessage;

#[derive(QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail")]
struct Thumbnail {
    width: u32,
}

fn main() {}
