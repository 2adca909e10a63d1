//! The page of the settings in the book, `docs/use/settings.md`.

use dgiwarp_cli::Variable;

const HEAD: &str = "\
# Settings

Environment variables, for programs run by `dgiwarp-run` or linked to dgiwarp. `dgiwarp-info` shows their present values and warns of those that it does not understand; most are
fields of `Config` in Rust. An unknown name or a malformed value is reported once on standard error and ignored.

| variable | default | meaning, unit, range |
|---|---|---|
";

const FOOT: &str = "
This page is printed by `dgiwarp-info --markdown`; the manual page dgiwarp(7) and `dgiwarp-info --help` come from the same table.
";

/// The page.
pub(crate) fn page(variables: &[Variable]) -> String {
    let mut text = HEAD.to_owned();
    for variable in variables {
        let default = match variable.default.as_str() {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        let about = &variable.about;
        text.push_str(&format!("| `{}` | {default} | {about} |\n", variable.name));
    }
    text.push_str(FOOT);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manual::variables;

    #[test]
    fn the_page_in_the_book_is_fresh() {
        let book = include_str!("../../../../../docs/use/settings.md");
        let page = page(&variables());
        assert!(page.matches("| `DGIWARP_").count() >= 20);
        assert_eq!(
            book, page,
            "cargo run -p dgiwarp-run --bin dgiwarp-info -- --markdown > docs/use/settings.md"
        );
    }
}
