use jobqueue::Validate;

struct Plain;

#[derive(Validate)]
struct Envelope<T> {
    #[message(nested)]
    inner: T,
}

fn main() {
    let _ = Envelope { inner: Plain }.validate();
}
