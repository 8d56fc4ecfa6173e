//! Blobs in a table.

use jobqueue::storage::{BlobName, ContainerName, PutBlob, Storage};

use crate::own_schema;

/// No name has this character, which no text of the server can have.
#[tokio::test]
async fn listing_by_a_text_with_nul_finds_the_names_around_it() {
    let (options, _) = own_schema();
    let storage = Storage::open(options).await.unwrap();
    let container: ContainerName = "a-container".parse().unwrap();
    storage.blobs().create_container(&container).await.unwrap();
    for name in ["a", "ab", "b"] {
        let blob = BlobName::new(container.clone(), name).unwrap();
        storage.blobs().put_blob(&blob, "text".into(), PutBlob::new()).await.unwrap();
    }
    for (prefix, marker, expected) in [
        ("a\0b", None, &[][..]),
        ("a\0", None, &[]),
        ("", Some("a\0b"), &["ab", "b"]),
        ("", Some("\0"), &["a", "ab", "b"]),
    ] {
        let listed = storage.blobs().list_blobs(&container, prefix, marker).await.unwrap();
        let names: Vec<_> = listed.blobs.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, expected, "{prefix:?} {marker:?}");
    }
}
