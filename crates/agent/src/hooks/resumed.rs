//! Hook flags of runtime-async methods (.NET 11 on): a resumption must not count as a call.
//!
//! Such a method is entered again each time it is resumed, and not left when it is suspended
//! (dotnet/runtime issue 122488). It is two functions: its body, and a thunk that creates its task
//! for other callers. The thunk gets no hooks, as it calls the body. Runs once for each method,
//! when it is compiled.

use corprof::context::Callback;
use corprof::{Cx, FunctionId};

use super::stack::{ASYNC, RESUMES};
use crate::clr::{Clr, async_types, names};

/// Returns the flags of a function's frames; `None` if it gets no hooks. For a generic method the
/// thunk cannot be distinguished from the body.
pub(super) fn flags<'rt>(
    clr: &Clr,
    cx: &Cx<'rt, Callback>,
    function: FunctionId<'rt>,
) -> Option<u32> {
    let Ok(Some(found)) = cx.info().get_function_info2(cx, function) else {
        return Some(0);
    };
    let Some(module) = found.module else {
        return Some(0);
    };
    let implementation = || {
        let metadata = cx.info().get_module_meta_data(cx, module).ok()??;
        let method = metadata.get_method_props(found.token).ok()?;
        Some(method.implementation)
    };
    if implementation().is_some_and(|flags| flags & async_types::IS_RUNTIME_ASYNC != 0) {
        // A metadata token resolves to the thunk.
        let thunk = cx.info().get_function_from_token(cx, module, found.token);
        let is_thunk = matches!(thunk, Ok(Some(thunk)) if thunk == function);
        return (!is_thunk).then_some(ASYNC);
    }
    let names = names::of_function(clr, cx, function)?;
    let resumes =
        async_types::dispatches_continuations(&names) || async_types::resumes_continuation(&names);
    Some(if resumes { RESUMES } else { 0 })
}
