//! The application's own blobs: a folder in a container.

use bytes::Bytes;
use jobqueue::Storage;
use jobqueue::storage::{BlobName, ContainerName, NameError};
use jobqueue::storage::{PutBlob, StoreError, StoreErrorKind};

/// The maximum size of a blob: 256 MiB.
const MAX_BYTES: u64 = 256 * 1024 * 1024;

/// Blobs under one prefix.
#[derive(Debug, Clone)]
pub struct BlobFolder {
    storage: Storage,
    container: ContainerName,
    prefix: String,
}

/// The reason why a blob is not available.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A name that is not allowed.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The error of the storage.
    #[error(transparent)]
    Storage(#[from] StoreError),
}

impl BlobFolder {
    /// Opens the folder `prefix` of a container, which is created if it is missing.
    ///
    /// # Errors
    /// [`FolderError::Name`] if the name is not allowed, [`FolderError::Storage`] if the storage fails.
    pub async fn open(
        storage: &Storage,
        container: &str,
        prefix: impl Into<String>,
    ) -> Result<Self, FolderError> {
        let container = ContainerName::new(container)?;
        storage.blobs().create_container(&container).await?;
        Ok(Self { storage: storage.clone(), container, prefix: prefix.into() })
    }

    fn name(&self, name: &str) -> Result<BlobName, NameError> {
        BlobName::new(self.container.clone(), format!("{}/{name}", self.prefix))
    }

    /// Writes a blob. Replaces an existing one.
    ///
    /// # Errors
    /// [`FolderError::Storage`] if the storage fails.
    pub async fn put(&self, name: &str, data: impl Into<Bytes>) -> Result<(), FolderError> {
        self.storage.blobs().put_blob(&self.name(name)?, data.into(), PutBlob::new()).await?;
        Ok(())
    }

    /// Reads a blob.
    ///
    /// # Errors
    /// [`FolderError::Storage`] if the blob does not exist or the storage fails.
    pub async fn get(&self, name: &str) -> Result<Bytes, FolderError> {
        Ok(self.storage.blobs().get_blob(&self.name(name)?, MAX_BYTES).await?.data)
    }

    /// Returns the number of blobs whose names begin with `prefix`.
    ///
    /// # Errors
    /// [`FolderError::Storage`] if the storage fails.
    pub async fn count(&self, prefix: &str) -> Result<u64, FolderError> {
        let prefix = format!("{}/{prefix}", self.prefix);
        Ok(self.storage.blobs().list_blobs(&self.container, &prefix, None).await?.blobs.len() as u64)
    }

    /// Deletes all blobs whose names begin with `prefix`.
    ///
    /// # Errors
    /// [`FolderError::Storage`] if the storage fails.
    pub async fn delete(&self, prefix: &str) -> Result<(), FolderError> {
        let prefix = format!("{}/{prefix}", self.prefix);
        loop {
            let page = self.storage.blobs().list_blobs(&self.container, &prefix, None).await?;
            for (name, _) in &page.blobs {
                let blob = BlobName::new(self.container.clone(), name)?;
                match self.storage.blobs().delete_blob(&blob, None).await {
                    Err(error) if error.kind() != StoreErrorKind::BlobNotFound => return Err(error.into()),
                    _ => {}
                }
            }
            if page.next.is_none() {
                return Ok(());
            }
        }
    }
}
