//! Native code of functions: address ranges of code bodies, and their maps to IL.

use super::{call, read_list};
use crate::context::{Context, Cx, MayTriggerGc, Synchronous};
use crate::id::{FunctionId, RejitId};
use crate::runtime::{Info, Result};
use crate::sys::{CorDebugIlToNativeMap, CorPrfCodeInfo, Hresult};

const NO_CODE: CorPrfCodeInfo = CorPrfCodeInfo {
    start_address: 0,
    size: 0,
};
const NO_MAP: CorDebugIlToNativeMap = CorDebugIlToNativeMap {
    il_offset: 0,
    native_start_offset: 0,
    native_end_offset: 0,
};

impl<'rt> Info<'rt> {
    /// The native code of a function's default version, hot part only (`GetCodeInfo`,
    /// asynchronous).
    ///
    /// # Errors
    /// `CORPROF_E_FUNCTION_NOT_COMPILED` if the function has no code.
    pub fn get_code_info<C: Context>(
        self,
        _: &Cx<'rt, C>,
        function: FunctionId<'rt>,
    ) -> Result<CorPrfCodeInfo> {
        let mut start = core::ptr::null();
        let mut size = 0;
        call!(self, get_code_info(function.raw(), &mut start, &mut size)).ok()?;
        Ok(CorPrfCodeInfo {
            start_address: start.addr(),
            size: size as usize,
        })
    }

    /// The native code of a function's default version, hot part and cold part (`GetCodeInfo2`,
    /// asynchronous).
    ///
    /// # Errors
    /// `CORPROF_E_FUNCTION_NOT_COMPILED` if the function has no code.
    pub fn get_code_info2<C: Context>(
        self,
        _: &Cx<'rt, C>,
        function: FunctionId<'rt>,
    ) -> Result<Vec<CorPrfCodeInfo>> {
        read_list::<_, 4>(NO_CODE, |buffer, capacity, length| {
            Ok(call!(
                self,
                get_code_info2(function.raw(), capacity, length, buffer)
            ))
        })
    }

    /// The first code body of one version of the IL (`GetCodeInfo3`, synchronous; may trigger a GC
    /// before .NET 6).
    ///
    /// # Errors
    /// `CORPROF_E_FUNCTION_NOT_COMPILED` if the function has no code.
    pub fn get_code_info3<C: MayTriggerGc>(
        self,
        _: &mut Cx<'rt, C>,
        function: FunctionId<'rt>,
        rejit: RejitId,
    ) -> Result<Vec<CorPrfCodeInfo>> {
        read_list::<_, 4>(NO_CODE, |buffer, capacity, length| {
            Ok(call!(
                self,
                get_code_info3(function.raw(), rejit.0, capacity, length, buffer)
            ))
        })
    }

    /// The ranges of the code body that starts at `start` (`GetCodeInfo4`, synchronous; may trigger
    /// a GC before .NET 6).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_code_info4<C: MayTriggerGc>(
        self,
        _: &mut Cx<'rt, C>,
        start: usize,
    ) -> Result<Vec<CorPrfCodeInfo>> {
        read_list::<_, 4>(NO_CODE, |buffer, capacity, length| {
            Ok(call!(self, get_code_info4(start, capacity, length, buffer)))
        })
    }

    /// Start address of each code body of one version of a function's IL, one for each tier
    /// (`GetNativeCodeStartAddresses`). The runtime treats the call as asynchronous, but it takes
    /// the code versioning lock, so a synchronous context is required here.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_native_code_start_addresses<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        function: FunctionId<'rt>,
        rejit: RejitId,
    ) -> Result<Vec<usize>> {
        read_list::<_, 16>(0, |buffer, capacity, length| {
            Ok(call!(
                self,
                get_native_code_start_addresses(function.raw(), rejit.0, capacity, length, buffer)
            ))
        })
    }

    /// The map from IL to native offsets of the code body that starts at `start`
    /// (`GetILToNativeMapping3`, synchronous; takes the debugger's lock).
    ///
    /// # Errors
    /// `CORPROF_E_DEBUGGING_DISABLED` when the runtime runs without a debugger interface.
    pub fn get_il_to_native_mapping3<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        start: usize,
    ) -> Result<Vec<CorDebugIlToNativeMap>> {
        // The runtime fills the whole buffer, even past the number of entries. So get the number
        // first and pass a buffer of exactly that length.
        let mut length = 0;
        call!(
            self,
            get_il_to_native_mapping3(start, 0, &mut length, core::ptr::null_mut())
        )
        .ok()?;
        let mut map = vec![NO_MAP; length as usize];
        if length == 0 {
            return Ok(map);
        }
        let mut filled = 0;
        call!(
            self,
            get_il_to_native_mapping3(start, length, &mut filled, map.as_mut_ptr())
        )
        .ok()?;
        if filled != length {
            return Err(Hresult::E_BOUNDS);
        }
        Ok(map)
    }
}
