//! The derive macros of `jobqueue`.
use proc_macro::TokenStream;
/// x
#[proc_macro_derive(QueueMessage, attributes(message))]
pub fn derive_queue_message(_input: TokenStream) -> TokenStream {
    TokenStream::new()
}
/// x
#[proc_macro_derive(Validate, attributes(message))]
pub fn derive_validate(_input: TokenStream) -> TokenStream {
    TokenStream::new()
}
