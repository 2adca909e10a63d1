//! The trait of a service, as its macro takes it.

use proc_macro2::TokenStream;
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, Expr, FnArg, Ident, ItemTrait, Lit, MetaNameValue, Pat, PatType, ReturnType,
    Signature, TraitItem, TraitItemFn, Type, Visibility,
};

/// Longest name of a service, in octets.
const MAX_NAME: usize = 64;
/// Arguments of a method, at most: serde has tuples of as many.
const MAX_ARGUMENTS: usize = 16;
/// Names of methods that the client or the trait has itself.
const TAKEN: [&str; 4] = ["serve", "new", "with_options", "with_metadata"];

/// A service.
pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) ident: Ident,
    pub(crate) methods: Vec<Method>,
}

/// A method of a service.
pub(crate) struct Method {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) ident: Ident,
    /// Its name on the wire.
    pub(crate) name: String,
    pub(crate) context: PatType,
    pub(crate) arguments: Vec<(Ident, Type)>,
    pub(crate) returned: Type,
}

impl Service {
    pub(crate) fn parse(attribute: TokenStream, item: TokenStream) -> Result<Self, Error> {
        let item: ItemTrait = syn::parse2(item)?;
        let name = if attribute.is_empty() {
            None
        } else {
            let given: MetaNameValue = syn::parse2(attribute)?;
            Some(service_name(&given)?)
        };
        if !item.generics.params.is_empty() || item.generics.where_clause.is_some() {
            return error(&item.generics, "a service has no generics");
        }
        if !item.supertraits.is_empty() {
            return error(&item.supertraits, "a service has no supertraits");
        }
        if let Some(token) = item.unsafety {
            return error(&token, "a service is not unsafe");
        }
        let mut methods: Vec<Method> = Vec::new();
        for item in item.items {
            let TraitItem::Fn(function) = item else {
                return error(&item, "a service has methods alone");
            };
            let method = Method::parse(function)?;
            let number = method_number(&method.name);
            let other = methods.iter().find(|it| method_number(&it.name) == number);
            if let Some(other) = other {
                let text = format!("its name has the number of `{}`: take another", other.name);
                return error(&method.ident, &text);
            }
            methods.push(method);
        }
        Ok(Self {
            name: name.unwrap_or_else(|| plain(&item.ident)),
            attributes: item.attrs,
            visibility: item.vis,
            ident: item.ident,
            methods,
        })
    }
}

impl Method {
    fn parse(function: TraitItemFn) -> Result<Self, Error> {
        if let Some(body) = &function.default {
            return error(body, "a method of a service has no body");
        }
        let Signature {
            constness,
            asyncness,
            unsafety,
            abi,
            ident,
            generics,
            inputs,
            variadic,
            output,
            ..
        } = function.sig;
        if asyncness.is_none() {
            return error(&ident, "a method of a service is async");
        }
        if constness.is_some() || unsafety.is_some() || abi.is_some() || variadic.is_some() {
            return error(&ident, "a method of a service is a plain async function");
        }
        if !generics.params.is_empty() || generics.where_clause.is_some() {
            return error(&generics, "a method of a service has no generics");
        }
        let name = plain(&ident);
        if TAKEN.contains(&name.as_str()) {
            return error(&ident, "the client or the trait has a method of this name");
        }
        let ReturnType::Type(_, returned) = output else {
            return error(&ident, "a method of a service returns `Result<_, Status>`");
        };
        let mut inputs = inputs.into_iter();
        match inputs.next() {
            Some(FnArg::Receiver(it)) if it.reference.is_some() && it.mutability.is_none() => {}
            _ => return error(&ident, "a method of a service has `&self`"),
        }
        let Some(FnArg::Typed(context)) = inputs.next() else {
            return error(&ident, "a `Context` follows `&self`");
        };
        let mut arguments = Vec::new();
        for input in inputs {
            let FnArg::Typed(argument) = input else {
                return error(&input, "`self` comes first");
            };
            let Pat::Ident(pattern) = *argument.pat else {
                return error(&argument.pat, "an argument has a plain name");
            };
            if let Type::Reference(_) | Type::ImplTrait(_) = *argument.ty {
                return error(&argument.ty, "an argument has a type that owns its value");
            }
            arguments.push((pattern.ident, *argument.ty));
        }
        if arguments.len() > MAX_ARGUMENTS {
            return error(&ident, "a method has at most 16 arguments");
        }
        Ok(Self {
            attributes: function.attrs,
            name,
            ident,
            context,
            arguments,
            returned: *returned,
        })
    }
}

fn service_name(given: &MetaNameValue) -> Result<String, Error> {
    let is_name = given.path.is_ident("name");
    let Expr::Lit(literal) = &given.value else {
        return error(given, "`name = \"…\"` is expected");
    };
    let Lit::Str(text) = &literal.lit else {
        return error(given, "`name = \"…\"` is expected");
    };
    if !is_name {
        return error(&given.path, "`name = \"…\"` is expected");
    }
    let name = text.value();
    let is_number = name.bytes().all(|it| it.is_ascii_digit());
    if is_number || name.len() > MAX_NAME || name.chars().any(char::is_whitespace) {
        return error(
            text,
            "a name has 1 to 64 octets, no spaces, and is no number",
        );
    }
    Ok(name)
}

/// A name without the mark of raw identifiers.
fn plain(ident: &Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").unwrap_or(&text).to_owned()
}

/// FNV-1a hash of 32 bits (`rfc-notes/ripc.md`, "Service numbers and names").
fn method_number(name: &str) -> u32 {
    let step = |hash: u32, octet| (hash ^ u32::from(octet)).wrapping_mul(0x0100_0193);
    name.bytes().fold(0x811c_9dc5, step)
}

fn error<T>(at: &impl Spanned, text: &str) -> Result<T, Error> {
    Err(Error::new(at.span(), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(attribute: &str, item: &str) -> String {
        let parsed = Service::parse(attribute.parse().unwrap(), item.parse().unwrap());
        parsed.map_or_else(|error| error.to_string(), |_| "taken".to_owned())
    }

    #[test]
    fn traits_of_other_forms_are_refused() {
        for (method, reason) in [
            ("fn a(&self, c: Context) -> R;", "is async"),
            ("async fn a(c: Context) -> R;", "`&self`"),
            ("async fn a(&mut self, c: Context) -> R;", "`&self`"),
            ("async fn a(self, c: Context) -> R;", "`&self`"),
            ("async fn a(&self) -> R;", "`Context` follows"),
            ("async fn a(&self, c: Context);", "returns"),
            ("async fn a(&self, c: Context) -> R {}", "no body"),
            ("async fn a<T>(&self, c: Context) -> R;", "no generics"),
            (
                "async fn a(&self, c: Context) -> R where u8: Copy;",
                "no generics",
            ),
            (
                "async fn a(&self, c: Context, (b, d): T) -> R;",
                "plain name",
            ),
            (
                "async fn a(&self, c: Context, b: &str) -> R;",
                "owns its value",
            ),
            (
                "async fn a(&self, c: Context, b: impl Copy) -> R;",
                "owns its value",
            ),
            ("async unsafe fn a(&self, c: Context) -> R;", "plain async"),
            (
                "async fn serve(&self, c: Context) -> R;",
                "has a method of this name",
            ),
            (
                "async fn new(&self, c: Context) -> R;",
                "has a method of this name",
            ),
            ("type A;", "methods alone"),
            (
                "async fn a(&self, c: Context) -> R; async fn a(&self, c: Context) -> R;",
                "number of `a`",
            ),
        ] {
            let refused = refusal("", &format!("trait S {{ {method} }}"));
            assert!(refused.contains(reason), "{method}: {refused}");
        }
        for (item, reason) in [
            ("trait S<T> {}", "no generics"),
            ("trait S: Copy {}", "no supertraits"),
            ("unsafe trait S {}", "not unsafe"),
            ("struct S;", "expected"),
        ] {
            let refused = refusal("", item);
            assert!(refused.contains(reason), "{item}: {refused}");
        }
        let arguments: String = (0..17).map(|at| format!(", a{at}: u8")).collect();
        let many = format!("trait S {{ async fn a(&self, c: C{arguments}) -> R; }}");
        assert!(refusal("", &many).contains("at most 16"));
    }

    #[test]
    fn two_methods_of_one_number_are_refused() {
        // Found by trying names.
        let (one, other) = collision();
        assert_eq!(method_number(&one), method_number(&other));
        let item = format!(
            "trait S {{ async fn {one}(&self, c: C) -> R; async fn {other}(&self, c: C) -> R; }}"
        );
        assert!(refusal("", &item).contains(&format!("number of `{one}`")));
    }

    fn collision() -> (String, String) {
        let mut seen = std::collections::HashMap::new();
        (0..1_000_000_u32)
            .find_map(|number| {
                let name = format!("m{number:x}");
                let other = seen.insert(method_number(&name), name.clone());
                other.map(|other| (other, name))
            })
            .unwrap()
    }

    #[test]
    fn names_are_checked() {
        let of = |attribute: &str| refusal(attribute, "trait S {}");
        assert_eq!(of("name = \"store\""), "taken");
        for wrong in ["\"\"", "\"17\"", "\"a b\"", "5", "a"] {
            assert_ne!(of(&format!("name = {wrong}")), "taken", "{wrong}");
        }
        assert_ne!(of(&format!("name = {:?}", "a".repeat(65))), "taken");
        assert_ne!(of("other = \"store\""), "taken");
        let service = Service::parse(TokenStream::new(), "trait KeyValue {}".parse().unwrap());
        assert_eq!(service.unwrap().name, "KeyValue");
    }

    #[test]
    fn numbers_of_methods_are_those_of_the_specification() {
        assert_eq!(method_number("get"), 0x540c_a757);
    }
}
