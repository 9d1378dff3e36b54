//! Finds runtime-async methods of other modules that may contain inlined copies of traced methods.
//!
//! From .NET 11 on the JIT makes an async version of each method that returns a task, for callers
//! that await it, and may inline that version. ReJIT does not find such callers:
//! `UpdateJitInlinerActiveILVersions` (`src/coreclr/vm/rejit.cpp`) looks them up by the method
//! itself. So all methods are recompiled that existed before the session and can refer to the
//! traced method, or to one into which it was inlined. Invariants: modules that cannot refer to it
//! are not changed. A caller keeps its own IL.

use std::collections::HashSet;

use corprof::context::RejitThread;
use corprof::{Cx, MetadataImport, ModuleKey, Token};

use crate::clr::async_types::IS_RUNTIME_ASYNC;

/// Mask and value of the flags of a public type (`tdVisibilityMask`, `tdPublic`).
const VISIBILITY: u32 = 0x7;
const PUBLIC: u32 = 0x1;
/// Namespaces of types that compilers put into each module.
const OF_COMPILERS: [&str; 2] = [
    "System.Runtime.CompilerServices.",
    "Microsoft.CodeAnalysis.",
];

/// Returns the runtime-async methods of modules outside `inlined` that may contain inlined copies
/// of methods of `inlined`.
pub(super) fn of<'rt>(
    cx: &mut Cx<'rt, RejitThread>,
    inlined: &HashSet<ModuleKey>,
    modules: &[ModuleKey],
) -> corprof::Result<Vec<(ModuleKey, Token)>> {
    let mut found = Vec::new();
    if inlined.is_empty() {
        return Ok(found);
    }
    let info = cx.info();
    let mut types = HashSet::new();
    let mut others = Vec::new();
    for key in modules {
        let Some(id) = info.id(*key) else { continue };
        let Some(import) = info.get_module_meta_data(cx, id)? else {
            continue;
        };
        match inlined.contains(key) {
            true => types.extend(defined(&import)),
            false => others.push((*key, import, None)),
        }
    }
    // A module that names a type of these modules is added to them.
    loop {
        let before = others.len();
        others.retain_mut(|(key, import, names)| {
            let names: &mut HashSet<String> = names.get_or_insert_with(|| named(import).collect());
            if names.is_disjoint(&types) {
                return true;
            }
            types.extend(defined(import));
            found.extend(runtime_async(import).map(|token| (*key, token)));
            false
        });
        if others.len() == before {
            return Ok(found);
        }
    }
}

/// Whether a method is compiled with runtime async.
pub(super) fn is_runtime_async(import: &MetadataImport<'_>, method: Token) -> bool {
    let props = import.get_method_props(method);
    props.is_ok_and(|props| props.implementation & IS_RUNTIME_ASYNC != 0)
}

/// Returns the runtime-async methods of a module.
pub(super) fn runtime_async<'a>(
    import: &'a MetadataImport<'_>,
) -> impl Iterator<Item = Token> + 'a {
    let classes = import.enum_type_defs().unwrap_or_default().into_iter();
    let methods = classes.flat_map(|class| import.enum_methods(class).unwrap_or_default());
    methods.filter(|method| is_runtime_async(import, *method))
}

/// Names of the types of a module to which others may refer. Nested types are covered by their
/// enclosing type.
fn defined<'a>(import: &'a MetadataImport<'_>) -> impl Iterator<Item = String> + 'a {
    let classes = import.enum_type_defs().unwrap_or_default().into_iter();
    classes.filter_map(|class| {
        let props = import.get_type_def_props(class).ok()?;
        let is_seen = match props.attributes & VISIBILITY {
            PUBLIC => true,
            // Friend assemblies also see types that are not public.
            0 => !OF_COMPILERS.iter().any(|of| props.name.starts_with(of)),
            _ => false,
        };
        is_seen.then_some(props.name)
    })
}

/// Names of the types of other modules to which a module refers, in any assembly, as types can be
/// forwarded.
fn named<'a>(import: &'a MetadataImport<'_>) -> impl Iterator<Item = String> + 'a {
    let types = import.enum_type_refs().unwrap_or_default().into_iter();
    types.filter_map(|class| Some(import.get_type_ref_props(class).ok()?.name))
}
