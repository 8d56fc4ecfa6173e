//! Marks the errors of a store that is one part of a larger store, such as a shard.

use std::future::Future;

use super::{Call, Interceptor};
use crate::StoreError;

/// Marks the errors of a store as errors of a part, which say nothing about the load of the whole.
#[derive(Debug)]
pub struct OfPart;

impl Interceptor for OfPart {
    async fn call<T: Send>(
        &self,
        _: Call<'_>,
        perform: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        perform.await.map_err(|error| error.with_of_part(true))
    }

    async fn call_all<T: Send>(
        &self,
        _: Call<'_>,
        _: usize,
        perform: impl Future<Output = Vec<Result<T, StoreError>>> + Send,
    ) -> Vec<Result<T, StoreError>> {
        let marked = |answer: Result<T, StoreError>| answer.map_err(|error| error.with_of_part(true));
        perform.await.into_iter().map(marked).collect()
    }
}
