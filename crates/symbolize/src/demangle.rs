//! Readable names for C++ and Rust symbols.
//!
//! Parameters and return types are left out: a flame graph shows which function it was, and
//! overloads differ by line. A name that is not mangled, or not well, is shown as it is.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// Maximum length of a name. Longer ones are cut: a hostile symbol can demangle to gigabytes.
const LONGEST: usize = 4096;

/// Returns the readable form of `symbol`, without an ELF version suffix (`@@GLIBC_2.34`).
#[must_use]
pub fn demangle(symbol: &str) -> Cow<'_, str> {
    let symbol = symbol.split_once('@').map_or(symbol, |(name, _)| name);
    if let Ok(rust) = rustc_demangle::try_demangle(symbol) {
        let mut text = Bounded::default();
        // An error means "too long": keep what fits.
        let _ = write!(text, "{rust:#}");
        return Cow::Owned(text.0);
    }
    if symbol.starts_with("_Z") {
        let options = cpp_demangle::DemangleOptions::new()
            .no_params()
            .no_return_type()
            .hide_expression_literal_types();
        if let Ok(parsed) = cpp_demangle::Symbol::new(symbol) {
            let mut text = Bounded::default();
            if parsed.structured_demangle(&mut text, &options).is_ok() && !text.0.is_empty() {
                return Cow::Owned(text.0);
            }
        }
    }
    let mut end = symbol.len().min(LONGEST);
    while !symbol.is_char_boundary(end) {
        end -= 1;
    }
    Cow::Borrowed(&symbol[..end])
}

#[derive(Default)]
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LONGEST {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::demangle;

    #[test]
    fn names() {
        for (symbol, readable) in [
            ("main", "main"),
            ("", ""),
            ("memcpy@@GLIBC_2.14", "memcpy"),
            ("_ZN6Thread14UnhijackThreadEv", "Thread::UnhijackThread"),
            (
                "_ZN3WKS7gc_heap10mark_phaseEiii",
                "WKS::gc_heap::mark_phase",
            ),
            (
                "_ZNSt6vectorIiSaIiEE9push_backEOi",
                "std::vector<int, std::allocator<int> >::push_back",
            ),
            (
                "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE",
                "core::fmt::Write::write_fmt",
            ),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            ("_Z", "_Z"),
            ("_ZZZZ", "_ZZZZ"),
        ] {
            assert_eq!(demangle(symbol), readable, "{symbol}");
        }
    }

    #[test]
    fn long_names_are_cut_at_a_character() {
        let long = "ä".repeat(5000);
        assert_eq!(demangle(&long).len(), 4096);
    }
}
