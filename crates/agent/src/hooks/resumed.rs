//! Hooked methods in calls of runtime async (.NET 11 on).
//!
//! Such a method is entered anew each time it is resumed, and is not left when it is suspended
//! (dotnet/runtime issue 122488); and it is two functions: its body, and a thunk that makes its
//! task for callers of other kinds. A resumption is no call, and the thunk has no hooks, as it
//! calls the body. Found out once for each method, as it is compiled.

use corprof::context::Callback;
use corprof::{Cx, FunctionId};

use super::stack::{ASYNC, RESUMES};
use crate::clr::{Clr, async_types, names};

/// The flags of a function's frames; `None`: it has no hooks. Of a generic method a thunk cannot be
/// told from the body.
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
        // Metadata leads to the thunk.
        let thunk = cx.info().get_function_from_token(cx, module, found.token);
        let is_thunk = matches!(thunk, Ok(Some(thunk)) if thunk == function);
        return (!is_thunk).then_some(ASYNC);
    }
    let names = names::of_function(clr, cx, function)?;
    let resumes =
        async_types::dispatches_continuations(&names) || async_types::resumes_continuation(&names);
    Some(if resumes { RESUMES } else { 0 })
}
