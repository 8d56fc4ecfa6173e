//! The pictures from which the built-in tiles are cut; `assets/SOURCES.md` says whose they are.

/// The name and the bytes of every built-in picture.
pub(super) const PICTURES: [(&str, &[u8]); 7] = [
    ("chelsea.jpg", include_bytes!("../assets/tiles/chelsea.jpg")),
    ("coffee.jpg", include_bytes!("../assets/tiles/coffee.jpg")),
    ("coins.jpg", include_bytes!("../assets/tiles/coins.jpg")),
    ("hubble.jpg", include_bytes!("../assets/tiles/hubble.jpg")),
    ("raccoon.jpg", include_bytes!("../assets/tiles/raccoon.jpg")),
    ("retina.jpg", include_bytes!("../assets/tiles/retina.jpg")),
    ("rocket.jpg", include_bytes!("../assets/tiles/rocket.jpg")),
];
