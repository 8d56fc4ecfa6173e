//! A secret shared by all programs with access to the private blobs of a storage; producers do not need it.
//!
//! Any sender can set any property. Content that the framework wrote carries a *seal*: an HMAC that only a
//! holder of the secret can compute. The first program that needs the secret creates it. Like any other
//! record it is a blob, and everyone who can read it is trusted.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::texts::QueueBlobs;
use jobqueue_storage::StoreError;
use jobqueue_storage::fast::hex::{read_hex, to_hex};
use jobqueue_storage::json_blob::{Edit, JsonBlob, Known};

const MAX_SECRET_BYTES: u64 = 1_024;

impl QueueBlobs {
    /// Returns the seal of a content: 64 hexadecimal digits.
    ///
    /// # Errors
    /// The errors of the storage: the secret could be neither read nor created.
    pub(super) async fn seal(&self, parts: &[&[u8]]) -> Result<String, StoreError> {
        Ok(to_hex(&code(self.key().await?, parts).finalize().into_bytes()))
    }

    /// Returns whether `seal` is the seal of this content. If there is no secret, there is no valid seal, and
    /// a message that claims one does not create the secret.
    ///
    /// # Errors
    /// The errors of the storage: the secret could not be read.
    pub(super) async fn is_sealed(&self, parts: &[&[u8]], seal: &str) -> Result<bool, StoreError> {
        let Some(seal) = read_hex::<32>(seal.as_bytes()) else { return Ok(false) };
        let key = match self.key.get() {
            Some(key) => key,
            None => match self.secret()?.read().await? {
                Some(read) => self.key.get_or_init(|| async { read.value }).await,
                None => return Ok(false),
            },
        };
        Ok(code(key, parts).verify_slice(&seal).is_ok())
    }

    /// Returns the secret; created if it does not exist, and cached.
    async fn key(&self) -> Result<&str, StoreError> {
        let made = self.key.get_or_try_init(|| async {
            let fresh = to_hex(&self.runtime.random_bytes::<32>());
            let change = |present: Option<String>| match present {
                Some(key) => Edit::Keep(key),
                None => Edit::Write(fresh.clone(), fresh.clone()),
            };
            self.secret()?.change(Known::Nothing, change).await.map(|changed| changed.result)
        });
        made.await.map(String::as_str)
    }

    fn secret(&self) -> Result<JsonBlob<String>, StoreError> {
        Ok(JsonBlob::new(&self.blobs, &self.runtime, self.blob("secrets", "key")?, MAX_SECRET_BYTES))
    }
}

/// Computes the HMAC. Each part is preceded by its length, so that different lists of parts are different
/// bytes.
fn code(key: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
    // HMAC accepts a key of any length; the fallback, a zero key, is never used.
    let mut code =
        Hmac::<Sha256>::new_from_slice(key.as_bytes()).unwrap_or_else(|_| Hmac::new(&Default::default()));
    for part in parts {
        code.update(&(part.len() as u64).to_be_bytes());
        code.update(part);
    }
    code
}

#[cfg(test)]
mod tests {
    use super::super::connection_string::parse;
    use super::*;
    use jobqueue_storage::runtime::Runtime;
    use jobqueue_storage::{BlobStore, memory};
    use std::sync::Arc;

    fn of(blobs: &Arc<dyn BlobStore>) -> QueueBlobs {
        let (namespace, _) = parse("Endpoint=sb://localhost").unwrap();
        QueueBlobs::new(Arc::clone(blobs), Runtime::new(), &namespace)
    }

    #[tokio::test]
    async fn seal_is_good_for_its_content_and_storage_only() {
        let blobs = memory::open().blobs;
        let seal = of(&blobs).seal(&[b"one", b"two"]).await.unwrap();
        let other = of(&blobs);
        assert!(other.is_sealed(&[b"one", b"two"], &seal).await.unwrap());
        for parts in [&[b"onetwo".as_slice()][..], &[b"on", b"etwo"], &[b"one", b"two", b""]] {
            assert!(!other.is_sealed(parts, &seal).await.unwrap());
        }
        for bad in ["", "00", &"0".repeat(64), &seal.to_uppercase()[..63]] {
            assert!(!other.is_sealed(&[b"one", b"two"], bad).await.unwrap(), "{bad}");
        }
        let empty = memory::open().blobs;
        assert!(!of(&empty).is_sealed(&[b"one", b"two"], &seal).await.unwrap());
        assert!(
            of(&empty).secret().unwrap().read().await.unwrap().is_none(),
            "a forged seal has a secret made"
        );
        assert!(!format!("{other:?}").contains(other.key().await.unwrap()));
    }
}
