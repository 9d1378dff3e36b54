//! The names of a method, from the runtime's metadata.
//!
//! Names are in metadata form (``Outer+Inner`1[System.Int32]``, `<Main>b__0_0`); the tool makes
//! them readable. Called on the agent thread, once for each sampled method, and in callbacks for
//! code that may be unloaded.
//!
//! Invariant: type arguments are followed to a bounded depth and breadth, for any types of the
//! program.

use corprof::context::Synchronous;
use corprof::{ClassId, Cx, FunctionId, Guid, MetadataImport, ModuleId, Token};

use super::{Clr, il};
use crate::model::{IlMap, ManagedModule, MethodNames};

/// Maximum depth of type arguments.
const MAX_DEPTH: u32 = 4;
/// Maximum number of type arguments that are named.
const MAX_ARGUMENTS: usize = 8;
/// Maximum length of a type name, bytes.
const MAX_NAME: usize = 1024;

/// Returns the names of a method that has metadata.
pub fn of_function<'rt, C: Synchronous>(
    clr: &Clr,
    cx: &Cx<'rt, C>,
    function: FunctionId<'rt>,
) -> Option<MethodNames> {
    let info = cx.info();
    let found = info.get_function_info2(cx, function).ok()??;
    let module = found.module?;
    let facts = clr.module(module.raw());
    let in_place = facts.as_ref().and_then(|facts| facts.metadata());
    let (mut type_name, mut name) = match in_place.and_then(|own| own.method(found.token.0)) {
        Some(method) => (method.type_name, method.name),
        // The runtime would read metadata from the missing part of the file.
        None if is_cut_short(facts.as_deref()) => {
            (String::new(), format!("0x{:08x}", found.token.0))
        }
        None => {
            // No image in memory, or one that was changed since: `base::metadata` says why the
            // runtime is queried last.
            let metadata = info.get_module_meta_data(cx, module).ok()??;
            let method = metadata.get_method_props(found.token).ok()?;
            (type_of(&metadata, method.class), method.name)
        }
    };
    if let Some(facts) = &facts
        && facts.mvid.get().is_none()
        && let Some(mvid) = mvid_of(cx, facts, module)
    {
        let _first = facts.mvid.set(mvid);
    }
    if let Some(class) = found.class
        && let Ok(Some(class)) = info.get_class_id_info2(cx, class)
    {
        arguments(clr, cx, &class.type_args, 0, &mut type_name);
    }
    arguments(clr, cx, &found.type_args, 0, &mut name);
    Some(MethodNames {
        module: facts,
        token: found.token.0,
        type_name,
        name,
    })
}

/// Whether the file of a module was truncated.
fn is_cut_short(facts: Option<&ManagedModule>) -> bool {
    facts.is_some_and(ManagedModule::is_cut_short)
}

fn mvid_of<'rt, C: Synchronous>(
    cx: &Cx<'rt, C>,
    facts: &ManagedModule,
    module: ModuleId<'rt>,
) -> Option<[u8; 16]> {
    if let Some(own) = facts.metadata() {
        return own.mvid();
    }
    if facts.is_cut_short() {
        return None;
    }
    let metadata = cx.info().get_module_meta_data(cx, module).ok()??;
    Some(guid_bytes(metadata.get_scope_props().ok()?.mvid))
}

/// Returns the name of a TypeDef token of a module.
pub(super) fn type_of_token<'rt, C: Synchronous>(
    clr: &Clr,
    cx: &Cx<'rt, C>,
    module: ModuleId<'rt>,
    token: Token,
) -> Option<String> {
    let facts = clr.module(module.raw());
    let in_place = facts.as_ref().and_then(|facts| facts.metadata());
    if let Some(name) = in_place.and_then(|own| own.type_name(token.0)) {
        return Some(name);
    }
    if is_cut_short(facts.as_deref()) {
        return None;
    }
    let metadata = cx.info().get_module_meta_data(cx, module).ok()??;
    Some(type_of(&metadata, token))
}

/// Returns a class's own name, without type arguments, and the token of a field that it declares.
pub fn class_and_field<'rt, C: Synchronous>(
    clr: &Clr,
    cx: &Cx<'rt, C>,
    (module, token): (ModuleId<'rt>, Token),
    field: &str,
) -> Option<(String, Option<u32>)> {
    let name = type_of_token(clr, cx, module, token)?;
    let facts = clr.module(module.raw());
    let field = match facts.as_ref().and_then(|facts| facts.metadata()) {
        Some(own) => own.field(token.0, field),
        None => {
            let metadata = cx.info().get_module_meta_data(cx, module).ok()??;
            let fields = metadata.enum_fields_with_name(token, field).ok()?;
            fields.first().map(|field| field.0)
        }
    };
    Some((name, field))
}

/// Returns the full name of a nested class from its own name (type arguments may follow) and a
/// method that is probably in the same module; `None` if it is not there or not unique.
pub fn of_nested<'rt, C: Synchronous>(
    clr: &Clr,
    cx: &Cx<'rt, C>,
    function: FunctionId<'rt>,
    own_name: &str,
) -> Option<String> {
    let found = cx.info().get_function_info2(cx, function).ok()??;
    let facts = clr.module(found.module?.raw())?;
    let (plain, arguments) = match own_name.find('[') {
        Some(end) => own_name.split_at_checked(end)?,
        None => (own_name, ""),
    };
    let name = facts.metadata()?.nested(plain)?;
    Some(name + arguments)
}

/// Whether a method has a clause that catches exceptions. True if that cannot be read.
pub fn may_catch<'rt, C: Synchronous>(
    clr: &Clr,
    cx: &Cx<'rt, C>,
    function: FunctionId<'rt>,
) -> bool {
    let il = || {
        let found = cx.info().get_function_info2(cx, function).ok()??;
        let module = found.module?;
        if is_cut_short(clr.module(module.raw()).as_deref()) {
            return None;
        }
        let body = cx.info().get_il_function_body(cx, module, found.token);
        body.ok()?
    };
    il().and_then(|il| il::catches(&il)).unwrap_or(true)
}

/// Returns the name of a method that has no metadata: a DynamicMethod or an IL stub.
pub fn of_dynamic<'rt, C: Synchronous>(
    cx: &Cx<'rt, C>,
    function: FunctionId<'rt>,
) -> Option<MethodNames> {
    let info = cx.info();
    let found = info.get_dynamic_function_info(cx, function).ok()?;
    Some(MethodNames {
        module: None,
        token: 0,
        type_name: String::new(),
        name: found.name,
    })
}

/// Returns the collectible module with which a method's code is unloaded: its own, or a type
/// argument's.
pub fn collectible_owner<'rt, C: Synchronous>(
    clr: &Clr,
    cx: &Cx<'rt, C>,
    function: FunctionId<'rt>,
) -> Option<usize> {
    let info = cx.info();
    let found = info.get_function_info2(cx, function).ok()??;
    let own = found.module.map(ModuleId::raw);
    own.filter(|module| clr.is_collectible(*module))
        .or_else(|| {
            found
                .class
                .into_iter()
                .chain(found.type_args.into_iter().flatten())
                .find_map(|class| collectible_class(clr, cx, class, 0))
        })
}

pub(super) fn collectible_class<'rt, C: Synchronous>(
    clr: &Clr,
    cx: &Cx<'rt, C>,
    class: ClassId<'rt>,
    depth: u32,
) -> Option<usize> {
    if depth >= MAX_DEPTH {
        return None;
    }
    let info = cx.info();
    if let Ok(Some(array)) = info.is_array_class(cx, class) {
        return collectible_class(clr, cx, array.element_class?, depth + 1);
    }
    let found = info.get_class_id_info2(cx, class).ok()??;
    if let Some(module) = found.module.map(ModuleId::raw)
        && clr.is_collectible(module)
    {
        return Some(module);
    }
    found
        .type_args
        .into_iter()
        .flatten()
        .find_map(|class| collectible_class(clr, cx, class, depth + 1))
}

/// Returns the map from native code to IL of the body at `code_start`.
pub fn il_map<C: Synchronous>(cx: &Cx<'_, C>, code_start: u64) -> Option<IlMap> {
    // CorDebugIlToNativeMap's special offsets: NO_MAPPING -1, PROLOG -2, EPILOG -3 (cordebug.idl).
    const SPECIAL: u32 = 0xffff_fff0;
    let start = usize::try_from(code_start).ok()?;
    let map = cx
        .info()
        .get_il_to_native_mapping3(cx, start)
        .ok()?
        .into_iter()
        .map(|entry| (entry.native_start_offset, entry.il_offset))
        .filter(|(_, il)| *il < SPECIAL);
    Some(il_map_of(map.collect()))
}

/// Builds a map of these entries. Consecutive entries with the same IL offset are merged: the
/// runtime omits some of those too.
pub(super) fn il_map_of(mut entries: Vec<(u32, u32)>) -> IlMap {
    entries.sort_unstable();
    entries.dedup_by_key(|(_, il)| *il);
    entries.into_boxed_slice()
}

/// Returns `Namespace.Outer+Inner`.
pub(crate) fn type_of(metadata: &MetadataImport<'_>, class: Token) -> String {
    let mut parts = Vec::new();
    let mut next = Some(class);
    while let Some(class) = next
        && parts.len() < 16
        && let Ok(props) = metadata.get_type_def_props(class)
    {
        parts.push(props.name);
        next = metadata.get_nested_class_props(class).ok().flatten();
    }
    parts.reverse();
    parts.join("+")
}

/// Appends `[A,B]`.
fn arguments<'rt, C: Synchronous>(
    clr: &Clr,
    cx: &Cx<'rt, C>,
    classes: &[Option<ClassId<'rt>>],
    depth: u32,
    into: &mut String,
) {
    if classes.is_empty() {
        return;
    }
    into.push('[');
    for (i, class) in classes.iter().take(MAX_ARGUMENTS).enumerate() {
        if i > 0 {
            into.push(',');
        }
        if into.len() > MAX_NAME {
            into.push('…');
            break;
        }
        match class {
            Some(class) => class_name(clr, cx, *class, depth + 1, into),
            None => into.push('?'),
        }
    }
    if classes.len() > MAX_ARGUMENTS {
        into.push_str(",…");
    }
    into.push(']');
}

/// Returns the name of a class, with array types and type arguments spelled out.
pub fn of_class<'rt, C: Synchronous>(clr: &Clr, cx: &Cx<'rt, C>, class: ClassId<'rt>) -> String {
    let mut name = String::new();
    class_name(clr, cx, class, 0, &mut name);
    name
}

fn class_name<'rt, C: Synchronous>(
    clr: &Clr,
    cx: &Cx<'rt, C>,
    class: ClassId<'rt>,
    depth: u32,
    into: &mut String,
) {
    if depth > MAX_DEPTH {
        into.push('…');
        return;
    }
    let info = cx.info();
    if let Ok(Some(array)) = info.is_array_class(cx, class) {
        match array.element_class {
            Some(element) => class_name(clr, cx, element, depth + 1, into),
            None => into.push('?'),
        }
        into.push('[');
        for _ in 1..array.rank.min(32) {
            into.push(',');
        }
        into.push(']');
        return;
    }
    let Ok(Some(found)) = info.get_class_id_info2(cx, class) else {
        into.push('?');
        return;
    };
    let name = found
        .module
        .and_then(|module| type_of_token(clr, cx, module, found.token));
    into.push_str(name.as_deref().unwrap_or("?"));
    arguments(clr, cx, &found.type_args, depth, into);
}

/// Returns a GUID in file order: the first three fields little-endian.
fn guid_bytes(guid: Guid) -> [u8; 16] {
    let mut bytes = [0; 16];
    let (fields, rest) = bytes.split_at_mut(8);
    let first = u64::from(guid.data1) | u64::from(guid.data2) << 32 | u64::from(guid.data3) << 48;
    fields.copy_from_slice(&first.to_le_bytes());
    rest.copy_from_slice(&guid.data4);
    bytes
}
