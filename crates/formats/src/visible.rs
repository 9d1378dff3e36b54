//! Escaping of names for display. Each format adds its own escaping.
//!
//! [`visible`] takes one name, [`visible_lines`] a text of ours that may contain unchecked names,
//! and [`EscapingFormatter`] all strings of a JSON text, keys included. Invariant: the result has
//! no control character, no line end, and nothing that moves or hides other text.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io;

use serde::Serialize;

/// Returns `name` with invisible and control characters written as `\u{…}`: control characters
/// (terminals execute them), line and paragraph separators, direction marks, zero-width characters.
/// An empty or blank name becomes `[no name]`.
pub fn visible(name: &str) -> Cow<'_, str> {
    if name.trim().is_empty() {
        return Cow::Borrowed("[no name]");
    }
    escape_where(name, needs_escape)
}

/// Returns `text` with the characters of [`visible`] escaped, except for line ends.
pub fn visible_lines(text: &str) -> Cow<'_, str> {
    escape_where(text, |c| needs_escape(c) && c != '\n')
}

fn escape_where(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_escaped(c) {
            // Writing to a String cannot fail.
            let _ = write!(shown, "{}", c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// Writes a value as JSON, with the characters of [`visible`] escaped as in JSON (`\u202e`).
/// Programs that parse the JSON get the original characters, terminals do not.
///
/// # Errors
/// Those of `out`.
pub fn write_json(out: impl io::Write, value: &impl Serialize) -> io::Result<()> {
    let mut serializer = serde_json::Serializer::with_formatter(out, EscapingFormatter);
    value.serialize(&mut serializer)?;
    Ok(())
}

/// Formatter that `serde_json` calls for each piece of a string that it does not escape itself.
struct EscapingFormatter;

impl serde_json::ser::Formatter for EscapingFormatter {
    fn write_string_fragment<W>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        // Fast path for most text: characters below U+007F that reach this function are visible.
        if fragment.is_ascii() && !fragment.contains('\u{7f}') {
            return writer.write_all(fragment.as_bytes());
        }
        let mut rest = fragment;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| needs_escape(*c)) {
            writer.write_all(&rest.as_bytes()[..at])?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = &rest[at + c.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }
}

/// Characters that change how others look, or that a terminal or parser obeys.
fn needs_escape(c: char) -> bool {
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
    use super::{visible, visible_lines, write_json};

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

    #[test]
    fn lines_stay_lines() {
        assert_eq!(visible_lines("a\nb\r\n\u{9b}c"), "a\nb\\u{d}\n\\u{9b}c");
        assert_eq!(visible_lines(""), "");
    }

    #[test]
    fn json_has_the_same_strings_written_out() {
        let text = "a\n\u{7f}\u{9b}\u{202e}\u{e0041}日\u{2028}\"";
        let mut out = Vec::new();
        let map = std::collections::BTreeMap::from([(text, text)]);
        write_json(&mut out, &map).expect("a Vec takes everything");
        let json = String::from_utf8(out).expect("it is text");
        let string = r#""a\n\u007f\u009b\u202e\udb40\udc41日\u2028\"""#;
        assert_eq!(json, format!("{{{string}:{string}}}"));
        let back: std::collections::BTreeMap<String, String> =
            serde_json::from_str(&json).expect("it is JSON");
        assert_eq!(back[text], text);
    }
}
