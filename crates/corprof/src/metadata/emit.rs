//! Writes a module's metadata: adds the signatures, types, members and strings that new IL uses.
//!
//! Input are names and signature blobs; output are tokens for [`crate::il`]. To define new types
//! and methods, use the raw interface ([`MetadataEmit::as_raw`]).
//!
//! Invariant: every method returns one token. A repeated call returns the existing token or an
//! equivalent one.

use core::ffi::c_void;
use core::ptr::NonNull;

use crate::context::Brand;
use crate::id::Token;
use crate::il::{LocalSignature, MethodSignature};
use crate::info::wide;
use crate::runtime::Result;
use crate::sys::{AssemblyMetadata, Hresult, IMetaDataAssemblyEmit, IMetaDataEmit2, Interface};

/// The metadata of one module, open for writing. It holds a COM reference. Its methods take the
/// metadata's lock. It cannot outlive the callback in which it was obtained, because the module
/// could be unloaded.
#[derive(Debug)]
pub struct MetadataEmit<'rt> {
    pointer: NonNull<IMetaDataEmit2>,
    brand: Brand<'rt>,
}

impl Drop for MetadataEmit<'_> {
    fn drop(&mut self) {
        // SAFETY: `new` took a reference, which is released here once.
        unsafe {
            let this = self.pointer.as_ptr();
            ((*(*this).vtbl).unknown.release)(this.cast());
        }
    }
}

/// Calls a slot whose last argument is an out-pointer for a token. Evaluates to the token or the
/// failure.
macro_rules! emit {
    ($self:ident, $method:ident($($arg:expr),* $(,)?)) => {{
        let mut token = 0;
        // SAFETY: the object is live and has every slot of `IMetaDataEmit2`, for which it was
        // queried; the pointers among the arguments are those of live values of the types and
        // lengths that the contract names.
        let answer = unsafe {
            IMetaDataEmit2::$method($self.pointer.as_ptr(), $($arg,)* &mut token)
        };
        answer.ok().map(|()| Token(token))
    }};
}

impl<'rt> MetadataEmit<'rt> {
    /// Takes over a reference; `None` when the pointer is null.
    ///
    /// # Safety
    /// `found` is null or a live `IMetaDataEmit2` of the runtime `'rt`, with one reference that is
    /// passed to this function.
    pub(crate) unsafe fn new<T>(found: *mut T) -> Option<Self> {
        NonNull::new(found).map(|found| Self {
            pointer: found.cast(),
            brand: Brand::default(),
        })
    }

    /// The token of a stand-alone signature (`GetTokenFromSig`): of the locals of a method, or of a
    /// `calli`. Code may use it at once.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_token_from_sig(&self, signature: &[u8]) -> Result<Token> {
        let length = length(signature)?;
        emit!(self, get_token_from_sig(signature.as_ptr(), length))
    }

    /// The token of the signature of a method's locals, for [`crate::il::Body::locals`].
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn locals(&self, locals: &LocalSignature) -> Result<Token> {
        self.get_token_from_sig(&locals.to_bytes())
    }

    /// The token of the signature of a `calli`, for [`crate::il::Instruction::calli`].
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn calli(&self, signature: &MethodSignature) -> Result<Token> {
        self.get_token_from_sig(&signature.to_bytes())
    }

    /// The token of a type by its signature (`GetTokenFromTypeSpec`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_token_from_type_spec(&self, signature: &[u8]) -> Result<Token> {
        let length = length(signature)?;
        emit!(self, get_token_from_type_spec(signature.as_ptr(), length))
    }

    /// A reference to another assembly (`DefineAssemblyRef` of `IMetaDataAssemblyEmit`), by its
    /// simple name, its minimum version and the token of its public key. The runtime finds it after
    /// [`crate::Info::apply_meta_data`].
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn define_assembly_ref(
        &self,
        name: &str,
        version: [u16; 4],
        public_key_token: [u8; 8],
    ) -> Result<Token> {
        let mut found: *mut c_void = core::ptr::null_mut();
        let this = self.pointer.as_ptr();
        // SAFETY: the object is live; `QueryInterface` reads the id and writes the pointer.
        let answer = unsafe {
            let query = (*(*this).vtbl).unknown.query_interface;
            query(this.cast(), &IMetaDataAssemblyEmit::IID, &mut found)
        };
        answer.ok()?;
        let assembly = NonNull::new(found.cast()).ok_or(Hresult::E_POINTER)?;
        let [major_version, minor_version, build_number, revision_number] = version;
        let metadata = AssemblyMetadata {
            major_version,
            minor_version,
            build_number,
            revision_number,
            locale: core::ptr::null_mut(),
            locale_length: 0,
            processor: core::ptr::null_mut(),
            processor_count: 0,
            os: core::ptr::null_mut(),
            os_count: 0,
        };
        let (name, mut token) = (wide(name), 0);
        // SAFETY: the runtime returned the requested interface, with a reference that is released
        // once; the arguments are live values of the types and lengths that the contract names.
        let answer = unsafe {
            let this: *mut IMetaDataAssemblyEmit = assembly.as_ptr();
            let answer = IMetaDataAssemblyEmit::define_assembly_ref(
                this,
                public_key_token.as_ptr().cast(),
                public_key_token.len() as u32,
                name.as_ptr(),
                &metadata,
                core::ptr::null(),
                0,
                0,
                &mut token,
            );
            ((*(*this).vtbl).unknown.release)(this.cast());
            answer
        };
        answer.ok().map(|()| Token(token))
    }

    /// A reference to a type (`DefineTypeRefByName`): `scope` is an assembly or a module reference,
    /// or the reference to the enclosing type; `name` includes the namespace. Code may use it at
    /// once.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn define_type_ref_by_name(&self, scope: Token, name: &str) -> Result<Token> {
        let name = wide(name);
        emit!(self, define_type_ref_by_name(scope.0, name.as_ptr()))
    }

    /// A reference to a member of a type (`DefineMemberRef`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn define_member_ref(&self, parent: Token, name: &str, signature: &[u8]) -> Result<Token> {
        let (name, length) = (wide(name), length(signature)?);
        emit!(
            self,
            define_member_ref(parent.0, name.as_ptr(), signature.as_ptr(), length)
        )
    }

    /// An instance of a generic method (`DefineMethodSpec`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn define_method_spec(&self, method: Token, arguments: &[u8]) -> Result<Token> {
        let length = length(arguments)?;
        emit!(
            self,
            define_method_spec(method.0, arguments.as_ptr(), length)
        )
    }

    /// A reference to a module, such as the library of a P/Invoke (`DefineModuleRef`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn define_module_ref(&self, name: &str) -> Result<Token> {
        let name = wide(name);
        emit!(self, define_module_ref(name.as_ptr()))
    }

    /// A string for `ldstr` (`DefineUserString`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn define_user_string(&self, text: &str) -> Result<Token> {
        let units: Vec<u16> = text.encode_utf16().collect();
        let length = u32::try_from(units.len()).map_err(|_| Hresult::E_INVALIDARG)?;
        emit!(self, define_user_string(units.as_ptr(), length))
    }

    /// The raw interface. It must not be used after `self` is dropped.
    pub fn as_raw(&self) -> NonNull<IMetaDataEmit2> {
        self.pointer
    }
}

fn length(bytes: &[u8]) -> Result<u32> {
    u32::try_from(bytes.len()).map_err(|_| Hresult::E_INVALIDARG)
}
