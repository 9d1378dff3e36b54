//! Makes a name safe to show. Not an escape for any one format: those come on top.
//!
//! The invariant: what comes out has no control character, no line end, and nothing that moves or
//! hides other text.

use std::borrow::Cow;
use std::fmt::Write as _;

/// `name` with every character that would act instead of being seen written as `\u{…}`: control
/// characters (a terminal obeys them), line and paragraph separators, direction marks,
/// zero-width characters. A name of nothing, or of white space alone, becomes `[no name]`.
pub fn visible(name: &str) -> Cow<'_, str> {
    if name.trim().is_empty() {
        return Cow::Borrowed("[no name]");
    }
    if !name.chars().any(acts) {
        return Cow::Borrowed(name);
    }
    let mut shown = String::with_capacity(name.len() + 16);
    for c in name.chars() {
        if acts(c) {
            // Writing to a String cannot fail.
            let _ = write!(shown, "{}", c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// Characters that change how others look, or that a terminal or parser obeys.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}'
            | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn what_acts_is_written_out() {
        for (name, shown) in [
            ("System.String.Concat", "System.String.Concat"),
            ("", "[no name]"),
            (" \u{a0}\n", "[no name]"),
            ("a\nb", "a\\u{a}b"),
            ("\u{1b}[31mred", "\\u{1b}[31mred"),
            ("x\u{202e}y\u{2028}", "x\\u{202e}y\\u{2028}"),
            ("nul\0", "nul\\u{0}"),
            ("Größe<日本>", "Größe<日本>"),
            ("\u{feff}", "\\u{feff}"),
        ] {
            assert_eq!(visible(name), shown);
        }
    }
}
