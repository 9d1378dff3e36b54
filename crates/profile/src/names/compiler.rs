//! Parser of compiler-made identifiers: what the user wrote for `<BuyAsync>d__5` and the like.
//!
//! It parses one identifier, without type arguments. The kinds are Roslyn's `GeneratedNameKind`
//! (`<inner>` and a letter), and the common ones of Visual Basic and other compilers.

use std::borrow::Cow;

/// Maximum nesting of names in names.
const MAX_DEPTH: usize = 16;

/// The source construct that an identifier stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum SourceConstruct<'a> {
    /// A type or method with this name.
    Name(Cow<'a, str>),
    /// The state machine of an async method or iterator of this name.
    StateMachine(Cow<'a, str>),
    /// A generated class that only holds captured variables or lambdas.
    Closure,
}

/// Returns the source construct that the user wrote for this identifier of a type or method.
pub(super) fn source_construct(name: &str) -> SourceConstruct<'_> {
    at_depth(name, 0)
}

fn at_depth(name: &str, depth: usize) -> SourceConstruct<'_> {
    if depth > MAX_DEPTH {
        return SourceConstruct::Name(name.into());
    }
    let Some((inner, rest)) = split_angle(name) else {
        return visual_basic(name);
    };
    let of_inner = || match at_depth(inner, depth + 1) {
        SourceConstruct::Name(name) | SourceConstruct::StateMachine(name) => name,
        SourceConstruct::Closure => inner.into(),
    };
    if inner.is_empty() {
        return match rest {
            _ if rest == "c" || rest.starts_with("c__") => SourceConstruct::Closure,
            // The finally block of an iterator, a method of its state machine.
            _ if rest.starts_with("m__Finally") => SourceConstruct::Name("finally".into()),
            _ => match rest
                .strip_prefix("f__")
                .or_else(|| rest.strip_prefix("z__"))
            {
                // Anonymous types, and the lists of collection expressions.
                Some(kind) => SourceConstruct::Name(kind.into()),
                None => SourceConstruct::Name(name.into()),
            },
        };
    }
    match rest {
        // The entry point that waits for an async Main; types of this form have no better name.
        "" if inner == "Main" => SourceConstruct::Name(inner.into()),
        "" => SourceConstruct::Name(name.into()),
        // Top-level statements, a record's Clone.
        "$" => SourceConstruct::Name(of_inner()),
        "d" => SourceConstruct::StateMachine(member(of_inner())),
        _ if rest.starts_with("d__") => SourceConstruct::StateMachine(member(of_inner())),
        _ => {
            if let Some(ordinals) = rest.strip_prefix("b__") {
                SourceConstruct::Name(lambda(&member(of_inner()), ordinals).into())
            } else if let Some(local) = rest.strip_prefix("g__") {
                let local = local.split_once('|').map_or(local, |(local, _)| local);
                SourceConstruct::Name(format!("{}.{local}", member(of_inner())).into())
            } else if let Some(name) = file_local(rest) {
                SourceConstruct::Name(name.into())
            } else {
                SourceConstruct::Name(name.into())
            }
        }
    }
}

/// `<Main>b__0_0`: the second number counts the lambdas of a method, in a display class it is the
/// only one. The first is just `lambda`.
fn lambda(of: &str, ordinals: &str) -> String {
    let ordinal = ordinals
        .rsplit('_')
        .next()
        .and_then(|number| number.parse::<u32>().ok());
    match ordinal {
        None | Some(0) => format!("{of}.lambda"),
        Some(number) => format!("{of}.lambda#{}", u64::from(number) + 1),
    }
}

/// `<Program>F0123…__Secret`, a type that only its file sees.
fn file_local(rest: &str) -> Option<&str> {
    let (hash, name) = rest.strip_prefix('F')?.split_once("__")?;
    let is_hash = hash.len() >= 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_hash && !name.is_empty()).then_some(name)
}

/// `checkout@12`, `checkout@12-1`: the state machine of a `task { }` at this line, where it is one.
pub(super) fn task_of_fsharp(name: &str) -> Option<SourceConstruct<'_>> {
    let (of, place) = name.rsplit_once('@')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_place = place.split('-').all(is_number);
    (is_place && !of.is_empty()).then(|| SourceConstruct::StateMachine(of.into()))
}

/// `checkout@12`, `checkout@12-1`: the closure of a function at this line, where it has an
/// `Invoke`.
pub(super) fn closure_of_fsharp(name: &str) -> Option<SourceConstruct<'_>> {
    let of = task_of_fsharp(name)?;
    let (_, place) = name.rsplit_once('@')?;
    match of {
        SourceConstruct::StateMachine(of) => {
            Some(SourceConstruct::Name(format!("{of}.lambda@{place}").into()))
        }
        other => Some(other),
    }
}

/// `VB$StateMachine_2_LoadAsync`, `_Closure$__1-0`, `_Lambda$__0`.
fn visual_basic(name: &str) -> SourceConstruct<'_> {
    if let Some(rest) = name.strip_prefix("VB$StateMachine_") {
        let of = rest.split_once('_').map_or(rest, |(_, of)| of);
        match of.trim_start_matches('_').strip_prefix("Lambda$__") {
            Some(numbers) => SourceConstruct::StateMachine(format!("lambda#{numbers}").into()),
            None => SourceConstruct::StateMachine(of.into()),
        }
    } else if name.starts_with("_Closure$__") {
        SourceConstruct::Closure
    } else if let Some(numbers) = name.strip_prefix("_Lambda$__") {
        // That of the method, which is not named, and in it; the second alone in a closure.
        SourceConstruct::Name(format!("lambda#{numbers}").into())
    } else {
        SourceConstruct::Name(member(name.into()))
    }
}

/// Splits `<inner>rest` at the `>` that closes the first `<`.
fn split_angle(name: &str) -> Option<(&str, &str)> {
    let mut depth = 0usize;
    for (index, byte) in name.bytes().enumerate() {
        match byte {
            b'<' => depth += 1,
            b'>' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some((&name[1..index], &name[index + 1..]));
                }
            }
            _ if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// A method's name, where it implements an interface explicitly without the interface's namespace:
/// `System.Collections.Generic.IEnumerable<T>.GetEnumerator` gives `IEnumerable<T>.GetEnumerator`.
/// In names of state machines dots are dashes.
fn member(name: Cow<'_, str>) -> Cow<'_, str> {
    let explicit = |name: &str, dot: char| {
        let mut depth = 0usize;
        let mut dots = 0;
        for c in name.chars() {
            match c {
                '<' => depth += 1,
                '>' => depth = depth.saturating_sub(1),
                _ if c == dot && depth == 0 => dots += 1,
                _ => {}
            }
        }
        dots > 0
    };
    let is_constructor = matches!(&*name, ".ctor" | ".cctor") || name.starts_with('.');
    // `Main.lambda` and `Main.Local` are ours already and have no namespace to lose.
    if is_constructor || name.contains(".lambda") {
        name
    } else if !name.contains('.') && explicit(&name, '-') {
        Cow::Owned(without_namespaces(&name.replace('-', ".")))
    } else if explicit(&name, '.') {
        Cow::Owned(without_namespaces(&name))
    } else {
        name
    }
}

/// Keeps the last two parts of a dotted name (interface and member), and the last part of each
/// name within `<…>`.
fn without_namespaces(name: &str) -> String {
    // Where the interface begins: behind the second dot from the end that is outside of `<…>`.
    let mut depth = 0usize;
    let mut dots = Vec::new();
    for (index, c) in name.char_indices() {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            '.' if depth == 0 => dots.push(index),
            _ => {}
        }
    }
    let start = match dots.as_slice() {
        [.., before, _] => before + 1,
        _ => 0,
    };
    let mut text = String::with_capacity(name.len() - start);
    let mut word = String::new();
    let mut depth = 0usize;
    for c in name[start..].chars() {
        match c {
            '.' if depth > 0 => {
                word.push('.');
                continue;
            }
            '<' | '>' | ',' | '[' | ']' | '.' | ' ' => {
                text.push_str(short(&word));
                word.clear();
                text.push(c);
                if c == ',' {
                    text.push(' ');
                }
            }
            _ => word.push(c),
        }
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    text.push_str(short(&word));
    text
}

fn short(word: &str) -> &str {
    super::types::keyword(word).unwrap_or_else(|| word.rsplit('.').next().unwrap_or(word))
}
