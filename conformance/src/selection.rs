//! Which cases a run has: by name, family, role, level and clause, and which it leaves out.

use std::sync::LazyLock;

use thiserror::Error;

use crate::cases::{self, Case, Family, Level, Role};
use crate::clauses::Clauses;

/// A word that selects nothing.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SelectionError {
    /// No case has this name.
    #[error("there is no case {0}; dgiwarp-conform list has them all")]
    Case(String),
    /// No case tests this clause.
    #[error(
        "no case tests {0}: an RFC as in 5044, a section as in 5044-7.1, a rule as in 5044-7.1.2-5, or of datagrams as in Datagram-8"
    )]
    Clause(String),
    /// All cases are left out.
    #[error("no case is left")]
    Nothing,
}

/// Cases that a run has. An empty list does not restrict.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// These families.
    pub families: Vec<Family>,
    /// Cases of these names.
    pub cases: Vec<String>,
    /// The tester has this role.
    pub role: Option<Role>,
    /// The clause is as binding as this.
    pub level: Option<Level>,
    /// One of these RFCs, sections or rules is tested.
    pub clauses: Vec<String>,
    /// Names of cases that are left out.
    pub without: Vec<String>,
}

impl Selection {
    /// Whether each word selects something.
    ///
    /// # Errors
    /// [`SelectionError`].
    pub fn check(&self) -> Result<(), SelectionError> {
        let all = cases::all();
        let names = self.cases.iter().chain(&self.without);
        if let Some(unknown) = names
            .into_iter()
            .find(|id| !all.iter().any(|case| case.id == id.as_str()))
        {
            return Err(SelectionError::Case(unknown.clone()));
        }
        if let Some(unknown) = self
            .clauses
            .iter()
            .find(|clause| !all.iter().any(|case| tests(case, clause)))
        {
            return Err(SelectionError::Clause(unknown.clone()));
        }
        if self.cases().is_empty() {
            return Err(SelectionError::Nothing);
        }
        Ok(())
    }

    /// The cases, in the order in which they run.
    #[must_use]
    pub fn cases(&self) -> Vec<Case> {
        cases::all()
            .into_iter()
            .filter(|case| self.families.is_empty() || self.families.contains(&case.family))
            .filter(|case| self.cases.is_empty() || self.cases.iter().any(|id| id == case.id))
            // The rules of a sender hold in both roles.
            .filter(|case| {
                case.family == Family::Sent || self.role.is_none_or(|role| role == case.role)
            })
            .filter(|case| self.level.is_none_or(|level| level == case.level))
            .filter(|case| {
                self.clauses.is_empty() || self.clauses.iter().any(|clause| tests(case, clause))
            })
            .filter(|case| !self.leaves_out(case.id))
            .collect()
    }

    /// Whether the case of this name is left out.
    #[must_use]
    pub fn leaves_out(&self, case: &str) -> bool {
        self.without.iter().any(|id| id == case)
    }
}

/// The rules of all documents.
static CLAUSES: LazyLock<Clauses> =
    LazyLock::new(|| Clauses::load().unwrap_or_else(|_| Clauses::empty()));

/// Whether a case is about an RFC, a section with those below it, or one rule.
fn tests(case: &Case, selector: &str) -> bool {
    let mut parts = selector.splitn(3, '-');
    let rfc = parts.next().unwrap_or_default();
    let (section, rule) = (parts.next(), parts.next());
    if rule.is_some() {
        return CLAUSES
            .of_case(case.id)
            .any(|clause| clause.id.to_string() == selector);
    }
    case.clauses.iter().any(|clause| {
        let Some((document, of)) = clause.split_once(" §") else {
            return false;
        };
        let document = document.strip_prefix("RFC ").unwrap_or(document);
        document.eq_ignore_ascii_case(rfc)
            && section.is_none_or(|section| {
                of == section
                    || of
                        .strip_prefix(section)
                        .is_some_and(|rest| rest.starts_with('.'))
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(selection: &Selection) -> Vec<&'static str> {
        selection.check().unwrap();
        selection.cases().iter().map(|case| case.id).collect()
    }

    fn of(clause: &str) -> Selection {
        Selection {
            clauses: vec![clause.to_owned()],
            ..Selection::default()
        }
    }

    #[test]
    fn clauses_select_at_every_depth() {
        let rfc = ids(&of("5044"));
        let section = ids(&of("5044-7.1"));
        let below = ids(&of("5044-7.1.1"));
        let rule = ids(&of("5044-7.1.1-1"));
        assert!(rfc.len() > section.len() && section.len() > below.len());
        assert!(below.iter().all(|id| section.contains(id)));
        assert!(!rule.is_empty() && rule.len() < rfc.len(), "{rule:?}");
        let datagrams = of("datagram-6").cases();
        assert!(
            datagrams
                .iter()
                .all(|case| matches!(case.family, Family::Datagram | Family::Sent))
        );
        // Section 4.1 is not 4.10.
        assert!(of("5044-7.").check().is_err());
        assert_eq!(
            of("5044-99").check(),
            Err(SelectionError::Clause("5044-99".to_owned()))
        );
    }

    #[test]
    fn levels_and_names_select_and_leave_out() {
        let of_level = |level| Selection {
            level: Some(level),
            ..Selection::default()
        };
        let (must, should) = (ids(&of_level(Level::Must)), ids(&of_level(Level::Should)));
        assert_eq!(must.len() + should.len(), cases::all().len());
        assert!(should.contains(&"M13") && must.contains(&"M02"));
        let mut some = of("5044-7.1");
        some.without = vec!["M02".to_owned()];
        assert!(!ids(&some).contains(&"M02"));
        some.cases = some.without.clone();
        assert_eq!(some.check(), Err(SelectionError::Nothing));
        some.cases = vec!["Z99".to_owned()];
        assert_eq!(some.check(), Err(SelectionError::Case("Z99".to_owned())));
    }
}
