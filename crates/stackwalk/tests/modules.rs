//! Checks that each load and unload of a native module is reported once, and look-ups follow.

use stackwalk::{CodeKind, CodeMap, ModuleChange, NativeModule, Scratch, Stack};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

fn open(path: &Path) -> *mut libc::c_void {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a library of the C library's own; its constructors do nothing.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "{path:?}");
    library
}

/// Returns the changes since the last call. Each new module gets its index in the list as its word.
fn changes(map: &CodeMap, known: &mut Vec<NativeModule>) -> (Vec<NativeModule>, Vec<NativeModule>) {
    let (mut new, mut gone) = (Vec::new(), Vec::new());
    let count = map.refresh_native(&mut |change| match change {
        ModuleChange::Loaded { module } => {
            new.push(module.clone());
            known.push(module.clone());
            known.len() as u64 - 1
        }
        ModuleChange::Unloaded { module } => {
            gone.push(module.clone());
            0
        }
    });
    assert_eq!(count, new.len() + gone.len());
    (new, gone)
}

/// Returns the number of mappings of a file that start at its beginning.
fn begins(path: &Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    // The maps contain no links.
    let file = path.canonicalize();
    let path = file.as_deref().unwrap_or(path).to_string_lossy();
    let lines = maps.lines().filter(|line| line.contains(&*path));
    lines.filter(|line| line.contains(" 00000000 ")).count()
}

#[test]
fn each_change_is_reported_once_and_looked_up() {
    let map = Box::new(CodeMap::new());
    let mut known = Vec::new();
    let (new, gone) = changes(&map, &mut known);
    assert!(new.len() >= 4 && gone.is_empty(), "{new:#?}");
    assert_eq!(changes(&map, &mut known), (Vec::new(), Vec::new()));

    // This function is in this program, and its address in the file matches its bias.
    let here = each_change_is_reported_once_and_looked_up as fn() as usize as u64;
    let region = map.lookup(here).unwrap();
    assert_eq!(region.kind, CodeKind::Native);
    let program = known[region.user as usize].clone();
    assert_eq!(program.path, std::env::current_exe().unwrap());
    assert!(program.code.contains(&here) && program.range.start >= program.bias);
    assert!(
        known
            .iter()
            .any(|module| module.path.as_os_str() == "[vdso]")
    );
    let with_id = known
        .iter()
        .filter(|module| module.build_id.len() == 20)
        .count();
    assert!(
        with_id >= 2,
        "the C library and the vdso have build ids: {known:#?}"
    );

    // Dumps and debuggers find a module by the first mapping of its file.
    for module in known.iter().filter(|module| module.path.is_absolute()) {
        assert_eq!(begins(&module.path), 1, "{module:?}");
    }

    // A library whose file exists, and one whose file was deleted before the scan.
    let folder = std::env::temp_dir().join(format!("stackwalk-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let libm = (known.iter().map(|module| &module.path))
        .find(|path| path.to_string_lossy().contains("libc.so"))
        .and_then(|libc| Some(libc.parent()?.join("libm.so.6")))
        .unwrap();
    for delete in [false, true] {
        let copy = folder.join(format!("copy-{delete}.so"));
        std::fs::copy(&libm, &copy).unwrap();
        let before = map.memory().bytes;
        let library = open(&copy);
        if delete {
            std::fs::remove_file(&copy).unwrap();
        }
        let (new, gone) = changes(&map, &mut known);
        let [module] = &new[..] else {
            panic!("{new:#?}")
        };
        assert_eq!((&module.path, gone), (&copy, Vec::new()));
        // SAFETY: looks up a name; the library is open.
        let cos = unsafe { libc::dlsym(library, c"lgamma_r".as_ptr()) } as u64;
        let region = map.lookup(cos).unwrap();
        assert_eq!(known[region.user as usize], *module);
        // Its unwind table is found: at the first instruction the return address is on top.
        let mut words = [0u64; 4];
        let sp = words.as_mut_ptr() as u64;
        let (regs, mut out) = (
            stackwalk::Regs {
                ip: cos,
                sp,
                bp: 0,
                all: 0,
            },
            [0; 4],
        );
        let stack = Stack {
            low: 0,
            end: sp + 32,
            alt: None,
        };
        // SAFETY: the stack is `words`.
        let walk = unsafe { stackwalk::walk(&map, regs, &stack, &mut Scratch::new(), &mut out) };
        assert_eq!((walk.depth, walk.end), (1, stackwalk::End::Root));
        // The tables are copied, with or without a file. Only the linker maps the file.
        let cost = map.memory().bytes - before;
        assert!(cost > 4096, "{cost} bytes");
        assert_eq!(begins(&copy), 1);
        // SAFETY: opened above, used no more.
        unsafe { libc::dlclose(library) };
        assert_eq!(changes(&map, &mut known), (Vec::new(), new));
        assert_eq!(map.lookup(cos), None);
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(map.reclaim(), 0);

    // Forgotten modules take no memory, and are found again.
    map.forget_native();
    assert_eq!((map.memory().modules, map.lookup(here)), (0, None));
    let (anew, gone) = changes(&map, &mut known);
    assert!(anew.contains(&program) && gone.is_empty(), "{anew:#?}");
}
