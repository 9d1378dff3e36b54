//! COM basics: GUIDs, `IUnknown`, `IClassFactory`, and the macro that declares an interface.
//!
//! The subset that the runtime uses on every platform, without apartments, marshalling or a
//! registry.
//!
//! Invariant: a vtable declared here has each method at the slot that its declaration states.

use core::ffi::c_void;
use core::fmt;

use super::Hresult;

/// A GUID with the memory layout of the C structure.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Guid {
    /// The first eight hexadecimal digits.
    pub data1: u32,
    /// The next four.
    pub data2: u16,
    /// The next four.
    pub data3: u16,
    /// The remaining sixteen digits, in writing order.
    pub data4: [u8; 8],
}

impl Guid {
    /// Parses `XXXXXXXX-XXXX-XXXX-XXXX-XXXXXXXXXXXX`, with or without braces, in upper or lower
    /// case; `None` for any other text.
    pub const fn parse(text: &str) -> Option<Self> {
        let all = text.as_bytes();
        let start = match all.len() {
            36 => 0,
            38 if all[0] == b'{' && all[37] == b'}' => 1,
            _ => return None,
        };
        let mut raw = [0u8; 16];
        let mut digits = 0;
        let mut at = 0;
        while at < 36 {
            let byte = all[start + at];
            let dash = matches!(at, 8 | 13 | 18 | 23);
            if dash != (byte == b'-') {
                return None;
            }
            if !dash {
                let value = match byte {
                    b'0'..=b'9' => byte - b'0',
                    b'a'..=b'f' => byte - b'a' + 10,
                    b'A'..=b'F' => byte - b'A' + 10,
                    _ => return None,
                };
                raw[digits / 2] = raw[digits / 2] << 4 | value;
                digits += 1;
            }
            at += 1;
        }
        Some(Self {
            data1: u32::from_be_bytes([raw[0], raw[1], raw[2], raw[3]]),
            data2: u16::from_be_bytes([raw[4], raw[5]]),
            data3: u16::from_be_bytes([raw[6], raw[7]]),
            data4: [
                raw[8], raw[9], raw[10], raw[11], raw[12], raw[13], raw[14], raw[15],
            ],
        })
    }

    /// A GUID known at compile time; an invalid text does not compile.
    ///
    /// # Panics
    /// If called at run time with a text that [`Guid::parse`] refuses.
    pub const fn new(text: &str) -> Self {
        match Self::parse(text) {
            Some(guid) => guid,
            None => panic!("not a GUID"),
        }
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g, h, i] = self.data4;
        write!(
            f,
            "{{{:08X}-{:04X}-{:04X}-{a:02X}{b:02X}-{c:02X}{d:02X}{e:02X}{g:02X}{h:02X}{i:02X}}}",
            self.data1, self.data2, self.data3
        )
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One version of an interface. All versions of a family share one vtable; an object that
/// implements `iid` has its first `slots` entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceVersion {
    /// The C name, such as `ICorProfilerInfo3`.
    pub name: &'static str,
    /// The identifier for `QueryInterface`.
    pub iid: Guid,
    /// Number of slots of this version, including the three of `IUnknown`.
    pub slots: usize,
}

/// One method of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceMethod {
    /// The C name, such as `GetFunctionFromIP`.
    pub name: &'static str,
    /// The name of the field in the vtable structure, such as `get_function_from_ip`.
    pub field: &'static str,
    /// The C name of the interface version that added it.
    pub interface: &'static str,
    /// Index in the vtable.
    pub slot: usize,
}

/// Compile-time facts about an interface that [`com_interface!`](crate::com_interface) declared.
///
/// # Safety
/// A value of the type starts with a pointer to a vtable. The entries up to the `slots` of the
/// version that the object implements are as declared.
pub unsafe trait Interface {
    /// Every version, oldest first.
    const VERSIONS: &'static [InterfaceVersion];
    /// Every method except those of `IUnknown`, by slot.
    const METHODS: &'static [InterfaceMethod];
    /// Identifier of the newest version.
    const IID: Guid;
    /// Number of slots of the newest version.
    const SLOTS: usize;
}

/// Declares a family of COM interfaces, in which each version adds slots to the previous one.
///
/// Generates the object structure (a vtable pointer), the `#[repr(C)]` vtable structure with all
/// slots, one raw calling function for each method, and an implementation of [`Interface`]. The
/// number before each method is its slot. A wrong number does not compile.
#[macro_export]
macro_rules! com_interface {
    (
        $(#[$doc:meta])*
        pub interface $name:ident, $vtbl:ident {
            $(version $version:ident = $iid:literal {
                $($slot:literal $clr:ident $method:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty;)*
            })+
        }
    ) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name {
            /// The object's vtable.
            pub vtbl: *const $vtbl,
        }

        #[doc = concat!("The vtable of [`", stringify!($name), "`].")]
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $vtbl {
            /// Slots 0 to 2.
            pub unknown: $crate::sys::IUnknownVtbl,
            $($(
                #[doc = concat!("Slot ", $slot, ": `", stringify!($version), "::", stringify!($clr), "`.")]
                pub $method: unsafe extern "system" fn(this: *mut $name $(, $arg: $ty)*) -> $ret,
            )*)+
        }

        $($(
            const _: () = assert!(
                core::mem::offset_of!($vtbl, $method) == $slot * size_of::<usize>(),
                concat!(stringify!($clr), " is not at its slot")
            );
        )*)+

        impl $name {
            $($(
                #[doc = concat!("Calls `", stringify!($version), "::", stringify!($clr), "`, slot ", $slot, ".")]
                ///
                /// # Safety
                /// `this` is a live object of a version that has this slot, and the arguments are
                /// as the runtime's contract for the method requires.
                #[allow(clippy::too_many_arguments, reason = "the contract's, not ours")]
                pub unsafe fn $method(this: *mut Self $(, $arg: $ty)*) -> $ret {
                    // SAFETY: the caller guarantees the object, its version and the arguments.
                    unsafe { ((*(*this).vtbl).$method)(this $(, $arg)*) }
                }
            )*)+
        }

        // SAFETY: `repr(C)`, the first field is the vtable pointer; the slots are asserted above.
        unsafe impl $crate::sys::Interface for $name {
            const VERSIONS: &'static [$crate::sys::InterfaceVersion] = &[
                $($crate::sys::InterfaceVersion {
                    name: stringify!($version),
                    iid: $crate::sys::Guid::new($iid),
                    slots: {
                        let slots: &[usize] = &[$($slot),*];
                        slots[slots.len() - 1] + 1
                    },
                },)+
            ];
            const METHODS: &'static [$crate::sys::InterfaceMethod] = &[
                $($($crate::sys::InterfaceMethod {
                    name: stringify!($clr),
                    field: stringify!($method),
                    interface: stringify!($version),
                    slot: $slot,
                },)*)+
            ];
            const IID: $crate::sys::Guid =
                <Self as $crate::sys::Interface>::VERSIONS[<Self as $crate::sys::Interface>::VERSIONS.len() - 1].iid;
            const SLOTS: usize = size_of::<$vtbl>() / size_of::<usize>();
        }

        const _: () = {
            use $crate::sys::Interface;
            let versions = <$name as Interface>::VERSIONS;
            assert!(
                versions[versions.len() - 1].slots == <$name as Interface>::SLOTS,
                "a slot is missing"
            );
        };
    };
}

/// The vtable that every interface starts with.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IUnknownVtbl {
    /// Slot 0. Returns a pointer to the requested interface, with a reference added, or
    /// [`Hresult::E_NOINTERFACE`] and a null pointer if the object does not have it.
    pub query_interface: unsafe extern "system" fn(
        this: *mut c_void,
        iid: *const Guid,
        out: *mut *mut c_void,
    ) -> Hresult,
    /// Slot 1. Adds a reference.
    pub add_ref: unsafe extern "system" fn(this: *mut c_void) -> u32,
    /// Slot 2. Releases a reference; the last one frees the object.
    pub release: unsafe extern "system" fn(this: *mut c_void) -> u32,
}

/// Any COM object.
#[repr(C)]
#[derive(Debug)]
pub struct IUnknown {
    /// The object's vtable.
    pub vtbl: *const IUnknownVtbl,
}

impl IUnknown {
    /// Identifier of `IUnknown`.
    pub const IID: Guid = Guid::new("00000000-0000-0000-C000-000000000046");
}

const _: () = assert!(size_of::<IUnknownVtbl>() == 3 * size_of::<usize>());
const _: () = assert!(size_of::<Guid>() == 16 && align_of::<Guid>() == 4);

com_interface! {
    /// The factory that `DllGetClassObject` returns.
    ///
    /// Source: `unknwn.idl`.
    pub interface IClassFactory, IClassFactoryVtbl {
        version IClassFactory = "00000001-0000-0000-C000-000000000046" {
            3 CreateInstance create_instance(outer: *mut IUnknown, iid: *const Guid, out: *mut *mut c_void) -> Hresult;
            4 LockServer lock_server(lock: super::Bool) -> Hresult;
        }
    }
}
