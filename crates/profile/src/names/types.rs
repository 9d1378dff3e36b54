//! Parser of metadata type names: nested types, generic arity and arguments, arrays.
//!
//! `compiler` handles the compiler-made parts of a name.

use super::compiler::{self, SourceConstruct};

/// Maximum nesting of type arguments.
const MAX_DEPTH: usize = 16;

/// A parsed type name such as `A.B`1+C[System.Int32]*`.
pub(super) struct TypeName<'a> {
    namespace: &'a str,
    /// The type and the types nested in it.
    segments: Vec<Segment<'a>>,
    /// Text of the generic arguments of all segments.
    arguments: Vec<&'a str>,
    /// `[]`, `*`, `&`.
    suffix: &'a str,
    depth: usize,
}

struct Segment<'a> {
    text: &'a str,
    written: SourceConstruct<'a>,
    arity: usize,
}

impl<'a> TypeName<'a> {
    pub(super) fn parse(text: &'a str) -> TypeName<'a> {
        TypeName::at_depth(text, 0)
    }

    fn at_depth(text: &'a str, depth: usize) -> TypeName<'a> {
        let text = text.trim();
        let (core, suffix) = split_suffix(text);
        let (core, arguments) = match split_arguments(core) {
            Some((core, arguments)) => (core, split_top_level(arguments, b',')),
            None => (core, Vec::new()),
        };
        let mut parts = split_top_level(core, b'+').into_iter();
        let first = parts.next().unwrap_or_default();
        let (namespace, first) = split_namespace(first);
        let segments = std::iter::once(first)
            .chain(parts)
            .map(Segment::parse)
            .collect();
        TypeName {
            namespace,
            segments,
            arguments,
            suffix,
            depth,
        }
    }

    /// Whether it is the state machine of an async method or iterator.
    pub(super) fn is_state_machine(&self) -> bool {
        let last = self.segments.last();
        last.is_some_and(|last| matches!(last.written, SourceConstruct::StateMachine(_)))
    }

    /// Replaces a last part such as `checkout@12-1`, the state machine of a `task { }` in F#, by
    /// `checkout`.
    pub(super) fn or_task_of_fsharp(mut self) -> Self {
        if let Some(last) = self.segments.last_mut()
            && let Some(machine) = compiler::task_of_fsharp(last.text)
        {
            last.written = machine;
        }
        self
    }

    /// Replaces the last part, an F# closure in `checkout`, by `checkout`. Returns `None` for other
    /// types.
    pub(super) fn closure_of_fsharp(mut self) -> Option<Self> {
        let last = self.segments.last_mut()?;
        last.written = compiler::closure_of_fsharp(last.text)?;
        Some(self)
    }

    /// Writes it as the owner of a method, with its namespace. `closures`: also the classes that
    /// only hold captured variables.
    pub(super) fn write_owner(&self, closures: bool, out: &mut String) {
        out.push_str(self.namespace);
        self.write_segments(closures, out);
        out.push_str(self.suffix);
    }

    /// Writes it as an argument: without its namespace, C#'s word where there is one.
    fn write_argument(&self, out: &mut String) {
        if self.depth > MAX_DEPTH {
            out.push('…');
            return;
        }
        let only = match self.segments.as_slice() {
            [
                Segment {
                    written: SourceConstruct::Name(name),
                    ..
                },
            ] if self.namespace == "System" => Some(&**name),
            _ => None,
        };
        match only {
            Some("__Canon") => out.push('_'),
            Some("Nullable") if self.arguments.len() == 1 => {
                self.argument(0, out);
                out.push('?');
            }
            Some("ValueTuple") if self.arguments.len() > 1 => {
                out.push('(');
                self.write_list(0..self.arguments.len(), out);
                out.push(')');
            }
            Some(name) if self.arguments.is_empty() && system_keyword(name).is_some() => {
                out.push_str(system_keyword(name).unwrap_or(name));
            }
            _ => self.write_segments(false, out),
        }
        out.push_str(self.suffix);
    }

    fn argument(&self, index: usize, out: &mut String) {
        // The agent writes `?` for what it could not name.
        let text = self
            .arguments
            .get(index)
            .copied()
            .filter(|text| *text != "?");
        let text = text.unwrap_or("System.__Canon");
        TypeName::at_depth(unqualified(text), self.depth + 1).write_argument(out);
    }

    fn write_list(&self, range: std::ops::Range<usize>, out: &mut String) {
        for index in range.clone() {
            if index > range.start {
                out.push_str(", ");
            }
            self.argument(index, out);
        }
    }

    fn write_segments(&self, closures: bool, out: &mut String) {
        let mut used = 0;
        let mut first = out.is_empty() || self.depth > 0;
        let last = self.segments.len() - 1;
        for (index, segment) in self.segments.iter().enumerate() {
            let mut next = used + segment.arity;
            if index == last {
                // Without arities (other languages) the arguments belong to the last one.
                next = next.max(self.arguments.len());
            }
            let name = match &segment.written {
                SourceConstruct::Name(name) | SourceConstruct::StateMachine(name) => Some(&**name),
                SourceConstruct::Closure => closures.then_some(segment.text),
            };
            if let Some(name) = name {
                if !first {
                    out.push('.');
                }
                first = false;
                out.push_str(name);
                if next > used {
                    out.push('<');
                    self.write_list(used..next, out);
                    out.push('>');
                }
            }
            used = next;
        }
    }
}

impl<'a> Segment<'a> {
    fn parse(text: &'a str) -> Segment<'a> {
        let (name, arity) = match text.rsplit_once('`') {
            Some((name, digits)) => match digits.parse::<u8>() {
                Ok(arity) => (name, usize::from(arity)),
                Err(_) => (text, 0),
            },
            None => (text, 0),
        };
        Segment {
            text: name,
            written: compiler::source_construct(name),
            arity,
        }
    }
}

/// Splits a method from its type: `A.B`1[System.Int32].Run[A.C]`. The dot in `..ctor` is the
/// name's.
pub(super) fn split_method(text: &str) -> (&str, &str) {
    let parts = split_top_level(text, b'.');
    let Some(last) = parts.last() else {
        return ("", text);
    };
    let at = text.len() - last.len();
    let (owner, method) = (&text[..at.saturating_sub(1)], &text[at..]);
    match owner.strip_suffix('.') {
        Some(owner) => (owner, &text[owner.len() + 1..]),
        None => (owner, method),
    }
}

/// Splits a method's name from its generic arguments: `Select[System.Int32]`.
pub(super) fn split_method_arguments(name: &str) -> (&str, Option<&str>) {
    match split_arguments(name) {
        Some((name, arguments)) => (name, Some(arguments)),
        None => (name, None),
    }
}

/// Writes `<…>` for the text between the brackets.
pub(super) fn write_arguments(arguments: &str, out: &mut String) {
    let list = TypeName {
        namespace: "",
        segments: Vec::new(),
        arguments: split_top_level(arguments, b','),
        suffix: "",
        depth: 0,
    };
    out.push('<');
    list.write_list(0..list.arguments.len(), out);
    out.push('>');
}

/// The C# word for a type of this full name.
pub(super) fn keyword(full_name: &str) -> Option<&'static str> {
    system_keyword(full_name.strip_prefix("System.")?)
}

fn system_keyword(name: &str) -> Option<&'static str> {
    Some(match name {
        "Boolean" => "bool",
        "Byte" => "byte",
        "SByte" => "sbyte",
        "Char" => "char",
        "Int16" => "short",
        "UInt16" => "ushort",
        "Int32" => "int",
        "UInt32" => "uint",
        "Int64" => "long",
        "UInt64" => "ulong",
        "IntPtr" => "nint",
        "UIntPtr" => "nuint",
        "Single" => "float",
        "Double" => "double",
        "Decimal" => "decimal",
        "String" => "string",
        "Object" => "object",
        "Void" => "void",
        _ => return None,
    })
}

/// Splits arrays, pointers and references off the end.
fn split_suffix(text: &str) -> (&str, &str) {
    let mut core = text;
    loop {
        let shorter = core.trim_end_matches(['*', '&']);
        let shorter = match shorter.strip_suffix(']') {
            Some(open) => {
                let open = open.trim_end_matches([',', '*']);
                open.strip_suffix('[').unwrap_or(shorter)
            }
            None => shorter,
        };
        if shorter.len() == core.len() {
            return (core, &text[core.len()..]);
        }
        core = shorter;
    }
}

/// Splits `[…]` off the end: what is before, what is between.
fn split_arguments(text: &str) -> Option<(&str, &str)> {
    let inside = text.strip_suffix(']')?;
    let mut depth = 1usize;
    for (index, byte) in inside.bytes().enumerate().rev() {
        match byte {
            b']' => depth += 1,
            b'[' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let (before, between) = (&inside[..index], &inside[index + 1..]);
            return (!between.is_empty() && !before.is_empty()).then_some((before, between));
        }
    }
    None
}

/// Splits at `separator` where it is in no brackets.
fn split_top_level(text: &str, separator: u8) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0usize, 0);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'[' | b'<' => depth += 1,
            b']' | b'>' => depth = depth.saturating_sub(1),
            _ if byte == separator && depth == 0 => {
                parts.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Splits at the last dot that is in no angle brackets.
fn split_namespace(text: &str) -> (&str, &str) {
    let mut depth = 0usize;
    for (index, byte) in text.bytes().enumerate().rev() {
        match byte {
            b'>' => depth += 1,
            b'<' => depth = depth.saturating_sub(1),
            b'.' if depth == 0 => return (&text[..index], &text[index + 1..]),
            _ => {}
        }
    }
    ("", text)
}

/// `[System.Int32, System.Private.CoreLib, …]`, as reflection writes an argument, without its
/// assembly.
fn unqualified(text: &str) -> &str {
    let inside = text
        .trim()
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let first = |text| split_top_level(text, b',').first().copied().unwrap_or(text);
    inside.map_or(text, first)
}
