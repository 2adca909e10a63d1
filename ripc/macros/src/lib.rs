//! The attribute of `dgiwarp-ripc-service`, which re-exports it.

#![forbid(unsafe_code)]

mod expand;
mod parse;

use proc_macro::TokenStream;

/// Makes a service of a trait: the trait as its handlers implement it, and a client of the name of the trait and `Client`.
///
/// ```text
/// #[service]                       // the service has the name of the trait
/// #[service(name = "store")]       // or another one
/// pub trait KeyValue {
///     async fn get(&self, context: Context, key: String) -> Result<Option<String>, Status>;
/// }
/// ```
///
/// Each method is async and has `&self`, a `Context`, and up to 16 arguments that own their values, and returns `Result<_, Status>`. Arguments and results implement serde's `Serialize` and
/// `Deserialize`. The trait gets a method `serve(self, &Endpoint, Handle)`, and the client the methods without the `Context`. `dgiwarp-ripc-service` has an example that runs.
///
/// # Errors
/// Traits of other forms are refused, with the place and the reason; so are two methods whose names have one number.
#[proc_macro_attribute]
pub fn service(attribute: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(attribute.into(), item.into())
        .unwrap_or_else(|error| error.into_compile_error())
        .into()
}
