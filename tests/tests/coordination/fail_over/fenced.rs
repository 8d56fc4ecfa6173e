//! A resource that refuses lower terms than it has seen, as the documentation recommends to users.

use jobqueue::Storage;
use jobqueue::storage::{BlobName, ContainerName};
use jobqueue::storage::{Condition, PutBlob, StoreErrorKind};

const CONTAINER: &str = "fenced";

pub struct Fenced<'a> {
    storage: &'a Storage,
    name: &'a str,
}

impl<'a> Fenced<'a> {
    pub async fn open(storage: &'a Storage, name: &'a str) -> Self {
        storage.blobs().create_container(&ContainerName::new(CONTAINER).unwrap()).await.unwrap();
        Self { storage, name }
    }

    fn blob(&self, rest: &str) -> BlobName {
        BlobName::new(ContainerName::new(CONTAINER).unwrap(), format!("{}/{rest}", self.name)).unwrap()
    }

    /// Writes in a term. Returns false if a higher term was seen. Records who acted in which term.
    pub async fn act(&self, term: u64, who: &str) -> bool {
        let register = self.blob("register");
        loop {
            let (seen, condition) = match self.storage.blobs().get_blob(&register, 100).await {
                Ok(found) => {
                    let seen: u64 = std::str::from_utf8(&found.data).unwrap().parse().unwrap();
                    (seen, Condition::IfMatch(found.properties.etag))
                }
                Err(e) if e.kind() == StoreErrorKind::BlobNotFound => (0, Condition::IfAbsent),
                Err(e) => panic!("{e}"),
            };
            if term < seen {
                return false;
            }
            let options = PutBlob::new().with_condition(condition);
            match self.storage.blobs().put_blob(&register, term.to_string().into(), options).await {
                Ok(_) => break,
                Err(e)
                    if matches!(
                        e.kind(),
                        StoreErrorKind::ConditionNotMet | StoreErrorKind::BlobAlreadyExists
                    ) => {}
                Err(e) => panic!("{e}"),
            }
        }
        let trace = self.blob(&format!("acts/{term}/{who}"));
        self.storage.blobs().put_blob(&trace, "".into(), PutBlob::new()).await.unwrap();
        true
    }

    /// Returns the terms with actions, and the process of each.
    pub async fn acts(&self) -> Vec<(u64, String)> {
        let prefix = format!("{}/acts/", self.name);
        let container = ContainerName::new(CONTAINER).unwrap();
        let page = self.storage.blobs().list_blobs(&container, &prefix, None).await.unwrap();
        let mut acts: Vec<_> = page
            .blobs
            .iter()
            .map(|(name, _)| {
                let (term, who) = name[prefix.len()..].split_once('/').unwrap();
                (term.parse().unwrap(), who.to_owned())
            })
            .collect();
        acts.sort();
        acts
    }
}
