//! Readable names, made from the names in metadata and files.
//!
//! Pure functions on text. Invariants: any text gives a name, in time proportional to its length;
//! an unknown form is returned unchanged.
//!
//! Methods that a compiler makes (closures, state machines, local functions) are mapped back after
//! Roslyn's `GeneratedNames` (kinds of names by the letter behind `>`), so that a row says what the
//! user wrote.

mod compiler;
mod native;
mod types;

use recording::{Event, MethodKind};

pub use crate::command::process;
pub use native::{AGENT_FRAME, is_agent, native_kind};

use compiler::SourceConstruct;
use types::TypeName;

/// Returns a readable name for a method, from its names in metadata (see
/// [`recording::Record::Method`]).
///
/// ```
/// # use profile::names::method;
/// # use recording::MethodKind::Il;
/// assert_eq!(method(Il, "App.Shop+<BuyAsync>d__5", "MoveNext"), "App.Shop.BuyAsync");
/// let list = "System.Collections.Generic.List`1[System.Int32]";
/// assert_eq!(method(Il, list, "Add"), "System.Collections.Generic.List<int>.Add");
/// ```
#[must_use]
pub fn method(kind: MethodKind, type_name: &str, name: &str) -> String {
    if kind == MethodKind::IlStub || name.starts_with("IL_STUB_") {
        return il_stub(name);
    }
    let type_name = if type_name == "dynamicClass" {
        ""
    } else {
        type_name
    };
    if kind == MethodKind::Dynamic {
        let name = qualified(type_name, name);
        return format!("DynamicMethod {name}").trim_end().to_owned();
    }
    qualified(type_name, name)
}

/// Prefix of a [`recording::Frame::AsyncMark`] whose text is the reason for an incomplete chain.
pub const ASYNC_CUT: &str = "async: ";

/// The role of a method for an async method of the source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AsyncRole {
    /// No role, or the method as written, which creates the state machine.
    Plain,
    /// The code of the method as written: `MoveNext` of its state machine.
    Body,
    /// The library method that calls the body for the first time.
    Start,
    /// `MoveNextAsync` of an async iterator.
    Step,
    /// The entry point that waits for an async Main.
    Entry,
}

/// Returns the role of a method for an async method, from its names in metadata.
pub(crate) fn async_role(kind: MethodKind, type_name: &str, name: &str) -> AsyncRole {
    const BUILDERS: &str = "System.Runtime.CompilerServices.";
    if kind != MethodKind::Il {
        return AsyncRole::Plain;
    }
    let (name, _) = types::split_method_arguments(name);
    let is_builder = || {
        let simple = type_name.strip_prefix(BUILDERS)?;
        let simple = simple.split(['`', '[', '+']).next()?;
        let is_it = match name {
            "Start" => simple == "AsyncMethodBuilderCore" || simple.ends_with("MethodBuilder"),
            "MoveNext" => simple == "AsyncIteratorMethodBuilder",
            _ => false,
        };
        is_it.then_some(AsyncRole::Start)
    };
    match name {
        "Start" => is_builder().unwrap_or(AsyncRole::Plain),
        "MoveNext" => match is_builder() {
            Some(role) => role,
            None if owner_of(type_name, name).is_state_machine() => AsyncRole::Body,
            None => AsyncRole::Plain,
        },
        "<Main>" => AsyncRole::Entry,
        _ if name.ends_with("MoveNextAsync") && TypeName::parse(type_name).is_state_machine() => {
            AsyncRole::Step
        }
        _ => AsyncRole::Plain,
    }
}

/// A readable name for a type, with its namespace.
///
/// ```
/// # use profile::names::type_name;
/// let list = "System.Collections.Generic.List`1+Enumerator[System.Int32][]";
/// assert_eq!(type_name(list), "System.Collections.Generic.List<int>.Enumerator[]");
/// ```
#[must_use]
pub fn type_name(text: &str) -> String {
    let mut name = String::new();
    TypeName::parse(text).write_owner(true, &mut name);
    name
}

/// A readable name for what an event is about: a type, or a method with the tier that it was
/// compiled to behind it in round brackets. Others are names already.
///
/// ```
/// # use profile::names::detail;
/// # use recording::Event;
/// assert_eq!(detail(Event::Alloc, "App.Box`1[System.Byte]"), "App.Box<byte>");
/// assert_eq!(detail(Event::Jit, "App.Shop+<BuyAsync>d__5.MoveNext (tier 1)"), "App.Shop.BuyAsync (tier 1)");
/// ```
#[must_use]
pub fn detail(event: Event, name: &str) -> String {
    match event {
        Event::Exception | Event::Alloc | Event::Live | Event::ClassLoad => type_name(name),
        Event::Jit | Event::TracedCall => {
            let (whole, tier) = match name.rfind(" (") {
                Some(at) if name.ends_with(')') => name.split_at(at),
                _ => (name, ""),
            };
            let (owner, method) = types::split_method(whole);
            format!("{}{tier}", self::method(MethodKind::Il, owner, method))
        }
        _ => name.to_owned(),
    }
}

/// The text of an event beside its subject: in an exception's text the method that catches it has a
/// readable name.
///
/// ```
/// # use profile::names::detail_text;
/// # use recording::Event;
/// let text = "No way; caught by App.Shop+<BuyAsync>d__5.MoveNext";
/// assert_eq!(detail_text(Event::Exception, text), "No way; caught by App.Shop.BuyAsync");
/// ```
#[must_use]
pub fn detail_text(event: Event, text: &str) -> String {
    const CAUGHT: &str = "caught by ";
    let caught = match text.rfind(CAUGHT) {
        // The whole text, or behind the message.
        Some(at) if event == Event::Exception && (at == 0 || text[..at].ends_with("; ")) => {
            at + CAUGHT.len()
        }
        _ => return text.to_owned(),
    };
    let (before, name) = text.split_at(caught);
    let (owner, method) = types::split_method(name);
    format!("{before}{}", self::method(MethodKind::Il, owner, method))
}

/// Words after `process PID` in a recorder's note on a process whose recording was ended without
/// its answer.
pub const GOES_ON: &str = "stopped answering and goes on";

/// The agent's word for code of another JIT, which neither a runtime nor a file has. Other marks
/// stand for no code.
pub const GENERATED_CODE: &str = "generated code";

/// The text for people of an agent's mark between two frames.
#[must_use]
pub fn pseudo(text: &str) -> String {
    match text {
        // The code of the frame above had no unwind rule, so a caller may be missing here.
        "by frame pointer" => "[callers may be missing here]".to_owned(),
        // The code of the frame above had no unwind rule, and its caller was read off the stack.
        "guess" => "[caller guessed]".to_owned(),
        _ => bracketed(text),
    }
}

fn qualified(type_name: &str, name: &str) -> String {
    let (name, arguments) = types::split_method_arguments(name);
    if name == "Invoke"
        && let Some(closure) = TypeName::parse(type_name).closure_of_fsharp()
    {
        let mut text = String::new();
        closure.write_owner(false, &mut text);
        return text;
    }
    let owner = owner_of(type_name, name);
    let written = compiler::source_construct(name);
    let mut text = String::new();
    // The method that runs the state machine is the method that the user wrote, which the type's
    // name has already said.
    let is_body = name == "MoveNext" && owner.is_state_machine();
    // A lambda's name says whose it is; the closure's own constructor must not look like its
    // owner's.
    let has_owner = is_body || matches!(&written, SourceConstruct::Name(shown) if **shown != *name);
    owner.write_owner(!has_owner, &mut text);
    if !is_body {
        if !text.is_empty() {
            text.push('.');
        }
        match written {
            SourceConstruct::Name(name) | SourceConstruct::StateMachine(name) => {
                text.push_str(&name)
            }
            SourceConstruct::Closure => text.push_str(name),
        }
    }
    if let Some(arguments) = arguments {
        types::write_arguments(arguments, &mut text);
    }
    text
}

/// The type of a method. Those that F# names after a line may be anything but what has a
/// `MoveNext`.
fn owner_of<'a>(type_name: &'a str, name: &str) -> TypeName<'a> {
    let owner = TypeName::parse(type_name);
    match name {
        "MoveNext" => owner.or_task_of_fsharp(),
        _ => owner,
    }
}

/// The stub's own name for people: `IL_STUB_PInvoke` gives `[IL stub: P/Invoke]`
/// (dotnet/runtime `ilstubcache.cpp`, `GetStubMethodName`).
fn il_stub(name: &str) -> String {
    let kind = match name.strip_prefix("IL_STUB_").unwrap_or(name) {
        "PInvoke" => "P/Invoke",
        "ReversePInvoke" => "reverse P/Invoke",
        "CLRtoCOM" => "CLR to COM",
        "COMtoCLR" => "COM to CLR",
        "StructMarshal" => "struct marshalling",
        "Array" => "array access",
        "MulticastDelegate_Invoke" => "multicast delegate",
        "WrapperDelegate_Invoke" => "wrapper delegate",
        "DelegateInvoke_Thunk" => "delegate",
        "DelegateShuffleThunk" => "delegate shuffle",
        "UnboxingStub" => "unboxing",
        "InstantiatingStub" => "instantiating",
        "StoreTailCallArgs" => "tail call arguments",
        "CallTailCallTarget" => "tail call",
        "VirtualStaticMethodDispatch" => "static virtual dispatch",
        "" => return "[IL stub]".to_owned(),
        other => other,
    };
    format!("[IL stub: {kind}]")
}

/// Text in square brackets, once.
#[must_use]
pub fn bracketed(text: &str) -> String {
    if text.starts_with('[') && text.ends_with(']') {
        text.to_owned()
    } else {
        format!("[{text}]")
    }
}

/// Why a walk broke or a chain was cut, from its pseudo frame: `[broken: no unwind rule]` gives `no
/// unwind rule`, `[async: gate closed]` gives `gate closed`.
#[must_use]
pub fn pseudo_reason(name: &str) -> &str {
    let text = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'))
        .unwrap_or(name);
    let text = text.strip_prefix("broken: ").unwrap_or(text);
    text.strip_prefix(ASYNC_CUT).unwrap_or(text)
}
