//! Modules, assemblies and application domains: files, addresses, metadata, symbols.

use super::{call, complete, read_list, read_text};
use crate::context::{Context, Cx, MayTriggerGc, Synchronous};
use crate::id::{AppDomainId, AssemblyId, Id, ModuleId};
use crate::metadata::{MetadataEmit, MetadataImport};
use crate::runtime::{Info, Result};
use crate::sys::{Hresult, IMetaDataEmit2, IMetaDataImport2, Interface, ModuleFlags, OpenFlags};

/// Result of `GetModuleInfo2`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModuleInfo<'rt> {
    /// Base address; 0 if the module is not in memory.
    pub base_address: usize,
    /// Path of the file, or a name if there is no file.
    pub path: String,
    /// Assembly; `None` before `ModuleAttachedToAssembly`.
    pub assembly: Option<AssemblyId<'rt>>,
    /// Properties.
    pub flags: ModuleFlags,
}

/// Result of `GetAssemblyInfo`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AssemblyInfo<'rt> {
    /// Simple name.
    pub name: String,
    /// Application domain.
    pub app_domain: Option<AppDomainId<'rt>>,
    /// The module that has the manifest.
    pub module: Option<ModuleId<'rt>>,
}

/// Result of `GetAppDomainInfo`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AppDomainInfo {
    /// Name.
    pub name: String,
    /// Process id.
    pub process: usize,
}

impl<'rt> Info<'rt> {
    /// Base address, file, assembly and flags of a module (`GetModuleInfo2`, asynchronous). `None`
    /// if the runtime does not have the data yet, or if the module is being unloaded.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_module_info2<C: Context>(
        self,
        _: &Cx<'rt, C>,
        module: ModuleId<'rt>,
    ) -> Result<Option<ModuleInfo<'rt>>> {
        let mut base = core::ptr::null();
        let (mut assembly, mut flags) = (0, 0);
        let path = read_text(|buffer, capacity, length| {
            Ok(call!(
                self,
                get_module_info2(
                    module.raw(),
                    &mut base,
                    capacity,
                    length,
                    buffer,
                    &mut assembly,
                    &mut flags,
                )
            ))
        });
        complete(path.map(|path| ModuleInfo {
            base_address: base.addr(),
            path,
            assembly: Id::new(assembly),
            flags: ModuleFlags::from_bits_retain(flags),
        }))
    }

    /// Name, domain and manifest module of an assembly (`GetAssemblyInfo`, synchronous). `None` if
    /// the runtime does not have the data yet.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_assembly_info<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        assembly: AssemblyId<'rt>,
    ) -> Result<Option<AssemblyInfo<'rt>>> {
        let (mut domain, mut module) = (0, 0);
        let name = read_text(|buffer, capacity, length| {
            Ok(call!(
                self,
                get_assembly_info(
                    assembly.raw(),
                    capacity,
                    length,
                    buffer,
                    &mut domain,
                    &mut module,
                )
            ))
        });
        complete(name.map(|name| AssemblyInfo {
            name,
            app_domain: Id::new(domain),
            module: Id::new(module),
        }))
    }

    /// The metadata of a module, for reading (`GetModuleMetaData`, synchronous). `None` if the
    /// runtime does not have the data yet, or if the module is being unloaded; also if the module
    /// has no metadata (a resource: the runtime returns `S_FALSE`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_module_meta_data<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        module: ModuleId<'rt>,
    ) -> Result<Option<MetadataImport<'rt>>> {
        let mut found = core::ptr::null_mut();
        let answer = call!(
            self,
            get_module_meta_data(module.raw(), 0, &IMetaDataImport2::IID, &mut found)
        );
        if answer == Hresult::S_FALSE {
            return Ok(None);
        }
        // SAFETY: on success the runtime returned a reference to the requested interface.
        complete(answer.ok()).map(|done| done.and_then(|()| unsafe { MetadataImport::new(found) }))
    }

    /// The metadata of a module, for writing (`GetModuleMetaData` with `ofWrite`, synchronous).
    /// `None` if the runtime does not have the data yet, or if the module is being unloaded; also
    /// if the module has no metadata.
    ///
    /// The runtime converts the module's metadata permanently into a writable form, which is larger
    /// and takes a lock for each look-up. Call this only if IL is changed.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_module_meta_data_emit<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        module: ModuleId<'rt>,
    ) -> Result<Option<MetadataEmit<'rt>>> {
        let mut found = core::ptr::null_mut();
        let flags = OpenFlags::WRITE.bits();
        let answer = call!(
            self,
            get_module_meta_data(module.raw(), flags, &IMetaDataEmit2::IID, &mut found)
        );
        if answer == Hresult::S_FALSE {
            return Ok(None);
        }
        // SAFETY: on success the runtime returned a reference to the requested interface.
        complete(answer.ok()).map(|done| done.and_then(|()| unsafe { MetadataEmit::new(found) }))
    }

    /// Every module that is loaded (`EnumModules`, synchronous, may trigger a GC).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn enum_modules<C: MayTriggerGc>(self, _: &mut Cx<'rt, C>) -> Result<Vec<ModuleId<'rt>>> {
        let mut enumerator = core::ptr::null_mut();
        call!(self, enum_modules(&mut enumerator)).ok()?;
        // SAFETY: the runtime returned an enumerator and a reference to it.
        let found = unsafe { super::enumerate::modules(enumerator) }?;
        Ok(found.into_iter().filter_map(Id::new).collect())
    }

    /// Length in bytes of the symbols of a module that was loaded with symbols from memory
    /// (`GetInMemorySymbolsLength`, synchronous); 0 if it has none.
    ///
    /// # Errors
    /// `CORPROF_E_MODULE_IS_DYNAMIC` for a module of `Reflection.Emit`.
    pub fn get_in_memory_symbols_length<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        module: ModuleId<'rt>,
    ) -> Result<u32> {
        let mut length = 0;
        call!(
            self,
            get_in_memory_symbols_length(module.raw(), &mut length)
        )
        .ok()?;
        Ok(length)
    }

    /// The symbols of a module that was loaded with symbols from memory (`ReadInMemorySymbols`,
    /// synchronous): a portable PDB. Empty if it has none.
    ///
    /// # Errors
    /// `CORPROF_E_MODULE_IS_DYNAMIC` for a module of `Reflection.Emit`.
    pub fn read_in_memory_symbols<C: Synchronous>(
        self,
        cx: &Cx<'rt, C>,
        module: ModuleId<'rt>,
    ) -> Result<Vec<u8>> {
        let length = self.get_in_memory_symbols_length(cx, module)?;
        let mut symbols = vec![0u8; length as usize];
        let mut done = 0u32;
        while done < length {
            let mut read = 0;
            let rest = &mut symbols[done as usize..];
            call!(
                self,
                read_in_memory_symbols(
                    module.raw(),
                    done,
                    rest.as_mut_ptr(),
                    length - done,
                    &mut read
                )
            )
            .ok()?;
            if read == 0 || read > length - done {
                return Err(Hresult::E_BOUNDS);
            }
            done += read;
        }
        Ok(symbols)
    }

    /// Name and process of an application domain (`GetAppDomainInfo`, synchronous; may trigger a GC
    /// before .NET 9). `None` if the runtime does not have the data yet.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_app_domain_info<C: MayTriggerGc>(
        self,
        _: &mut Cx<'rt, C>,
        domain: AppDomainId<'rt>,
    ) -> Result<Option<AppDomainInfo>> {
        let mut process = 0;
        let name = read_text(|buffer, capacity, length| {
            Ok(call!(
                self,
                get_app_domain_info(domain.raw(), capacity, length, buffer, &mut process)
            ))
        });
        complete(name.map(|name| AppDomainInfo { name, process }))
    }

    /// The domains in which a module is loaded (`GetAppDomainsContainingModule`, synchronous, may
    /// trigger a GC). `None` if the runtime does not have the data yet.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_app_domains_containing_module<C: MayTriggerGc>(
        self,
        _: &mut Cx<'rt, C>,
        module: ModuleId<'rt>,
    ) -> Result<Option<Vec<AppDomainId<'rt>>>> {
        let domains = read_list::<_, 4>(0, |buffer, capacity, length| {
            Ok(call!(
                self,
                get_app_domains_containing_module(module.raw(), capacity, length, buffer)
            ))
        });
        complete(domains.map(|domains| domains.into_iter().filter_map(Id::new).collect()))
    }
}
