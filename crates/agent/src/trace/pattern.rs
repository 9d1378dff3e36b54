//! Patterns by which a user names the methods to trace, matched against full method names.
//!
//! The full name is `Namespace.Type.Method`: nested types are joined by dots, without the number of
//! type parameters behind a name (`` `1 ``), and a constructor is `Type..ctor`. A pattern must
//! match the whole name; `*` stands for any characters. A pattern between slashes is a regular
//! expression, which may match any part. Invariant: matching takes time in proportion to the
//! pattern and the name, for any pattern.

use regex_lite::Regex;

use crate::model::TracePattern;

/// One parsed pattern.
#[derive(Debug)]
pub(super) struct Pattern {
    /// The pattern as typed.
    pub(super) text: String,
    pub(super) min_ns: u64,
    how: MatchKind,
}

#[derive(Debug)]
enum MatchKind {
    /// Literal parts, with any characters between them.
    Parts(Vec<String>),
    Regex(Regex),
}

impl Pattern {
    /// # Errors
    /// The reason why the pattern is invalid, for users.
    pub(super) fn new(asked: &TracePattern) -> Result<Pattern, String> {
        let text = asked.text.clone();
        let inside = text.strip_prefix('/').and_then(|t| t.strip_suffix('/'));
        let how = match inside {
            Some(regex) => MatchKind::Regex(
                Regex::new(regex).map_err(|error| format!("{text} is no pattern: {error}"))?,
            ),
            None => MatchKind::Parts(text.split('*').map(str::to_owned).collect()),
        };
        Ok(Pattern {
            min_ns: asked.min_ns,
            text,
            how,
        })
    }

    /// Whether the pattern is a single full name.
    pub(super) fn is_exact(&self) -> bool {
        matches!(&self.how, MatchKind::Parts(parts) if parts.len() == 1)
    }

    /// Whether methods of a type with this name, as [`plain`] makes it, may match.
    pub(super) fn may_match_in(&self, type_name: &str) -> bool {
        let MatchKind::Parts(parts) = &self.how else {
            return true;
        };
        let first = parts.first().map_or("", String::as_str);
        let rest = first.strip_prefix(type_name);
        type_name.starts_with(first) && parts.len() > 1
            || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    /// Whether the pattern matches this full name.
    pub(super) fn matches(&self, name: &str) -> bool {
        match &self.how {
            MatchKind::Regex(regex) => regex.is_match(name),
            MatchKind::Parts(parts) => match parts.as_slice() {
                [] => false,
                [only] => name == only,
                [first, between @ .., last] => {
                    let Some(mut rest) = name.strip_prefix(first.as_str()) else {
                        return false;
                    };
                    for part in between {
                        let found = rest.find(part.as_str());
                        let Some(behind) = found.and_then(|at| rest.get(at + part.len()..)) else {
                            return false;
                        };
                        rest = behind;
                    }
                    rest.ends_with(last.as_str())
                }
            },
        }
    }
}

/// Returns a type's name in the form of patterns: `Shop.Cart.Item` for `Shop.Cart`1+Item`.
pub(super) fn plain(type_name: &str) -> String {
    let mut plain = String::with_capacity(type_name.len());
    let mut in_arity = false;
    for c in type_name.chars() {
        match c {
            '`' => in_arity = true,
            '0'..='9' if in_arity => {}
            '+' => {
                in_arity = false;
                plain.push('.');
            }
            c => {
                in_arity = false;
                plain.push(c);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::new(&TracePattern {
            text: text.to_owned(),
            min_ns: 0,
        })
        .unwrap()
    }

    #[test]
    fn a_pattern_means_the_whole_name() {
        for (text, name, is_meant) in [
            ("Shop.Cart.Checkout", "Shop.Cart.Checkout", true),
            ("Shop.Cart.Checkout", "Shop.Cart.CheckoutAll", false),
            ("Cart.Checkout", "Shop.Cart.Checkout", false),
            ("*Cart.Checkout", "Shop.Cart.Checkout", true),
            ("Shop.*.Checkout", "Shop.Cart.Checkout", true),
            ("Shop.*.Checkout", "Shop.Cart.Item.Checkout", true),
            ("Shop.*.Checkout", "Shop.Checkout", false),
            ("Shop.Cart.*", "Shop.Cart..ctor", true),
            ("Shop.Cart.*", "Shop.Carts.Get", false),
            ("*", "Anything.At.All", true),
            ("A*a*a", "A.ba", false),
            ("A*a*a", "A.baca", true),
            ("/Cart/", "Shop.Cart.Checkout", true),
            (r"/^Shop\.(Cart|Till)\.\w+$/", "Shop.Till.Open", true),
            (r"/^Shop\.(Cart|Till)\.\w+$/", "Shop.Till.Open.Now", false),
        ] {
            let matches = pattern(text).matches(name);
            assert_eq!(matches, is_meant, "{text} of {name}");
            // A type is skipped only if none of its methods can match.
            let (of, _) = name.rsplit_once('.').unwrap_or_default();
            assert!(!matches || pattern(text).may_match_in(of.trim_end_matches('.')));
        }
        assert!(!pattern("Shop.Cart.*").may_match_in("Shop.Till"));
        assert!(!pattern("Shop.Cart.Checkout").may_match_in("Shop.Car"));
        assert!(
            Pattern::new(&TracePattern {
                text: "/(/".into(),
                min_ns: 0
            })
            .is_err()
        );
    }

    #[test]
    fn names_of_types_are_made_plain() {
        for (raw, is) in [
            ("Shop.Cart", "Shop.Cart"),
            ("Shop.Cart`1+Item`12", "Shop.Cart.Item"),
            ("Top10+List", "Top10.List"),
        ] {
            assert_eq!(plain(raw), is);
        }
    }
}
