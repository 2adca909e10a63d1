//! Code of a service.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::Error;

use crate::parse::{Method, Service};

/// The trait and the client of a service.
pub(crate) fn expand(attribute: TokenStream, item: TokenStream) -> Result<TokenStream, Error> {
    let service = Service::parse(attribute, item)?;
    let server = server(&service);
    let client = client(&service);
    Ok(quote! { #server #client })
}

fn server(service: &Service) -> TokenStream {
    let Service {
        name,
        attributes,
        visibility,
        ident,
        methods,
    } = service;
    let signatures = methods.iter().map(|method| {
        let Method {
            attributes,
            ident,
            context,
            arguments,
            returned,
            ..
        } = method;
        let arguments = arguments.iter().map(|(name, kind)| quote! { #name: #kind });
        quote! {
            #(#attributes)*
            fn #ident(&self, #context #(, #arguments)*)
                -> impl ::core::future::Future<Output = #returned> + ::core::marker::Send;
        }
    });
    let arms = methods.iter().map(|method| {
        let Method {
            attributes,
            ident: of,
            name,
            arguments,
            ..
        } = method;
        let conditions = attributes.iter().filter(|it| it.path().is_ident("cfg"));
        let names: Vec<_> = arguments.iter().map(|(name, _)| name).collect();
        let kinds = arguments.iter().map(|(_, kind)| kind);
        quote! {
            #(#conditions)*
            if __call.is(const { ::dgiwarp_ripc_service::MethodId::named(#name) }) {
                let (__context, (#(#names,)*)) = __call.arguments::<(#(#kinds,)*)>()?;
                let __result = <Self as #ident>::#of(&__service, __context #(, #names)*).await?;
                return ::dgiwarp_ripc_service::generated::reply(&__result);
            }
        }
    });
    quote! {
        #(#attributes)*
        #visibility trait #ident: ::core::marker::Send + ::core::marker::Sync + ::core::marker::Sized + 'static {
            #(#signatures)*

            /// Serves it on an endpoint. Handlers run in the runtime, and are dropped when their call is cancelled.
            ///
            /// # Errors
            /// As `Endpoint::serve`: the endpoint does not listen, or serves a service of this name already.
            fn serve(
                self,
                endpoint: &::dgiwarp_ripc_service::Endpoint,
                runtime: ::dgiwarp_ripc_service::Handle,
            ) -> ::core::result::Result<(), ::dgiwarp_ripc_service::Error> {
                let __service = ::std::sync::Arc::new(self);
                ::dgiwarp_ripc_service::generated::serve(endpoint, runtime, #name, move |__call| {
                    let __service = ::std::sync::Arc::clone(&__service);
                    async move {
                        #(#arms)*
                        ::core::mem::drop(__service);
                        ::core::result::Result::Err(__call.unknown())
                    }
                })
            }
        }
    }
}

fn client(service: &Service) -> TokenStream {
    let Service {
        name,
        visibility,
        ident,
        methods,
        ..
    } = service;
    let client = format_ident!("{}Client", ident);
    let about = format!("Client of the service [`{ident}`]. Cloning shares its connection.");
    let calls = methods.iter().map(|method| {
        let Method {
            attributes,
            ident,
            name,
            arguments,
            returned,
            ..
        } = method;
        let names: Vec<_> = arguments.iter().map(|(name, _)| name).collect();
        let arguments = arguments.iter().map(|(name, kind)| quote! { #name: #kind });
        quote! {
            #(#attributes)*
            #visibility async fn #ident(&self #(, #arguments)*) -> #returned {
                const METHOD: ::dgiwarp_ripc_service::MethodId = ::dgiwarp_ripc_service::MethodId::named(#name);
                self.caller.call(METHOD, &(#(#names,)*)).await
            }
        }
    });
    quote! {
        #[doc = #about]
        #[derive(::core::fmt::Debug, ::core::clone::Clone)]
        #visibility struct #client {
            caller: ::dgiwarp_ripc_service::generated::Caller,
        }

        impl #client {
            /// A client of the service at these addresses: calls go to the first one, and to the next ones where no connection can be made.
            #[must_use]
            #visibility fn new(
                endpoint: &::dgiwarp_ripc_service::Endpoint,
                addresses: ::std::vec::Vec<::std::net::SocketAddr>,
            ) -> Self {
                Self::balanced(endpoint, addresses, ::core::default::Default::default())
            }

            /// A client of the service that chooses the address of each call in this way.
            #[must_use]
            #visibility fn balanced(
                endpoint: &::dgiwarp_ripc_service::Endpoint,
                addresses: ::std::vec::Vec<::std::net::SocketAddr>,
                policy: ::dgiwarp_ripc_service::LoadBalancing,
            ) -> Self {
                let caller = ::dgiwarp_ripc_service::generated::Caller::new(endpoint, #name, addresses, policy);
                Self { caller }
            }

            /// With these options for its calls: time, urgency, room for long replies, whether they may be executed more than once.
            #[must_use]
            #visibility fn with_options(mut self, options: ::dgiwarp_ripc_service::CallOptions) -> Self {
                self.caller.options = options;
                self
            }

            /// With this metadata for its calls.
            #[must_use]
            #visibility fn with_metadata(mut self, metadata: ::dgiwarp_ripc_service::Metadata) -> Self {
                self.caller.metadata = metadata;
                self
            }

            #(#calls)*
        }
    }
}
