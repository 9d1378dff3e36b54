//! Walks in real signal handlers, over various native code.
//!
//! Every walk must reach the thread's root, allocate nothing, and start with the interrupted
//! instruction.

use stackwalk::{ADDRESS, BY_FRAME_POINTER, CodeMap, EXACT, End, HEURISTIC, Scratch, Stack};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell, UnsafeCell};
use std::ffi::CStr;
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts allocations inside the handler.
struct Guard;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands everything through to the system's allocator.
unsafe impl GlobalAlloc for Guard {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if IN_HANDLER.get() {
            ALLOCATIONS.fetch_add(1, Relaxed);
        }
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if IN_HANDLER.get() {
            ALLOCATIONS.fetch_add(1, Relaxed);
        }
        // SAFETY: promised by the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static GUARD: Guard = Guard;

static MAP: CodeMap = CodeMap::new();
const DEPTH: usize = 512;

struct Thread {
    stack: Stack,
    scratch: UnsafeCell<Scratch>,
    out: UnsafeCell<[u64; DEPTH]>,
    /// Frames of a walk that did not end at the root, for the report.
    bad: UnsafeCell<Vec<u64>>,
    /// The lowest and the highest address at which a broken walk began.
    broken_from: Cell<u64>,
    broken_to: Cell<u64>,
    end: Cell<End>,
    walks: Cell<u64>,
    by_frame_pointer: Cell<u64>,
    heuristic: Cell<u64>,
    broken: Cell<u64>,
    frames: Cell<u64>,
}

thread_local! {
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
    static THREAD: Cell<*const Thread> = const { Cell::new(std::ptr::null()) };
    static KEEP: RefCell<Option<Box<Thread>>> = const { RefCell::new(None) };
}

extern "C" fn on_signal(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: set before the first signal of this thread, cleared before it ends.
    let Some(thread) = (unsafe { THREAD.get().as_ref() }) else {
        return;
    };
    IN_HANDLER.set(true);
    // SAFETY: a handler with SA_SIGINFO gets a context.
    let (regs, alt) = unsafe { stackwalk::regs_from_ucontext(context.cast()) };
    let stack = Stack {
        alt,
        ..thread.stack.clone()
    };
    // SAFETY: the handler does not nest (its mask is full), so this is the only user; the stack
    // is this thread's own.
    let (walk, out) = unsafe {
        let out = &mut *thread.out.get();
        (
            stackwalk::walk(&MAP, regs, &stack, &mut *thread.scratch.get(), out),
            out,
        )
    };
    thread.walks.set(thread.walks.get() + 1);
    thread.frames.set(thread.frames.get() + walk.depth as u64);
    let frames = &out[..walk.depth];
    assert_eq!(frames[0], regs.ip | EXACT);
    let count = |flag| u64::from(frames.iter().any(|frame| frame & flag != 0));
    thread
        .by_frame_pointer
        .set(thread.by_frame_pointer.get() + count(BY_FRAME_POINTER));
    thread
        .heuristic
        .set(thread.heuristic.get() + count(HEURISTIC));
    if walk.end != End::Root {
        if thread.broken.get() < 3 {
            // SAFETY: room was made before.
            let bad = unsafe { &mut *thread.bad.get() };
            bad.extend_from_slice(&frames[frames.len().saturating_sub(40)..]);
            bad.push(0);
        }
        thread
            .broken_from
            .set(thread.broken_from.get().min(regs.ip));
        thread.broken_to.set(thread.broken_to.get().max(regs.ip));
        thread.end.set(walk.end);
        thread.broken.set(thread.broken.get() + 1);
    }
    IN_HANDLER.set(false);
}

fn stack_of_this_thread() -> Stack {
    // SAFETY: plain calls with valid pointers.
    unsafe {
        let mut attributes = std::mem::zeroed();
        assert_eq!(
            libc::pthread_getattr_np(libc::pthread_self(), &mut attributes),
            0
        );
        let (mut low, mut len) = (std::ptr::null_mut(), 0);
        assert_eq!(
            libc::pthread_attr_getstack(&attributes, &mut low, &mut len),
            0
        );
        libc::pthread_attr_destroy(&mut attributes);
        Stack {
            low: low as u64,
            end: low as u64 + len as u64,
            alt: None,
        }
    }
}

/// Runs `work` until `walks` signals were handled in it.
fn under_signals(name: &str, walks: u64, work: impl Fn()) {
    under_signals_but(name, walks, None, work);
}

/// Code whose unwind table is wrong.
struct Wrong {
    /// Its file.
    library: &'static str,
    /// Length of the range that contains it, bytes.
    bytes: u64,
    /// Maximum number of walks out of a thousand that may begin there.
    of_a_thousand: u64,
}

/// As [`under_signals`], except that walks out of `wrong` may end elsewhere.
fn under_signals_but(name: &str, walks: u64, wrong: Option<&Wrong>, work: impl Fn()) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|poison| poison.into_inner());
    MAP.refresh_native(&mut |_| 0);
    let thread = Box::new(Thread {
        stack: stack_of_this_thread(),
        scratch: UnsafeCell::new(Scratch::new()),
        out: UnsafeCell::new([0; DEPTH]),
        bad: UnsafeCell::new(Vec::with_capacity(256)),
        broken_from: Cell::new(u64::MAX),
        broken_to: Cell::new(0),
        end: Cell::new(End::Root),
        walks: Cell::new(0),
        by_frame_pointer: Cell::new(0),
        heuristic: Cell::new(0),
        broken: Cell::new(0),
        frames: Cell::new(0),
    });
    THREAD.set(&raw const *thread);
    // SAFETY: `on_signal` is a handler for SA_SIGINFO; the timer counts this thread's time and
    // signals this thread alone.
    let timer = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigfillset(&mut action.sa_mask);
        libc::sigaction(libc::SIGPROF, &action, std::ptr::null_mut());
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGPROF;
        event.sigev_notify_thread_id = libc::gettid();
        let mut timer = std::mem::zeroed();
        let made = libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer);
        assert_eq!(made, 0);
        let every = libc::timespec {
            tv_sec: 0,
            tv_nsec: 73_000,
        };
        let times = libc::itimerspec {
            it_interval: every,
            it_value: every,
        };
        libc::timer_settime(timer, 0, &times, std::ptr::null_mut());
        timer
    };
    while thread.walks.get() < walks {
        work();
    }
    // SAFETY: made above. A signal that is still pending finds no thread and returns.
    unsafe { libc::timer_delete(timer) };
    THREAD.set(std::ptr::null());
    // SAFETY: no handler runs any more on this thread that uses it.
    let (bad, scratch) = unsafe { (&*thread.bad.get(), &*thread.scratch.get()) };
    println!(
        "{name}: walks {} frames {:.1} cold {} broken {} by frame pointer {} heuristic {}",
        thread.walks.get(),
        thread.frames.get() as f64 / thread.walks.get() as f64,
        scratch.cold,
        thread.broken.get(),
        thread.by_frame_pointer.get(),
        thread.heuristic.get(),
    );
    if thread.broken.get() > 0 {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        for frame in bad {
            println!(
                "  {:#x} {:x} {}",
                frame & ADDRESS,
                frame >> 60,
                place(&maps, frame & ADDRESS)
            );
        }
    }
    let broken = thread.broken.get();
    if broken > 0 {
        // The allowed failures are in one place: the code that causes them.
        let wrong = wrong.unwrap_or_else(|| panic!("{name}: {broken} {:?}", thread.end.get()));
        let (from, to) = (thread.broken_from.get(), thread.broken_to.get());
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        for end in [from, to] {
            let place = place(&maps, end);
            assert!(
                place.contains(&format!("/{}+", wrong.library)),
                "{name}: broken at {place}"
            );
        }
        assert!(
            to - from < wrong.bytes,
            "{name}: broken at {from:#x} and at {to:#x}"
        );
        assert!(
            broken * 1000 <= thread.walks.get() * wrong.of_a_thousand,
            "{name}: {broken} {:?}",
            thread.end.get()
        );
    }
    assert_eq!(ALLOCATIONS.load(Relaxed), 0);
    MAP.reclaim();
}

/// Returns module and file offset of an address.
fn place(maps: &str, address: u64) -> String {
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    for line in maps.lines() {
        let (range, rest) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        if (hex(start)..hex(end)).contains(&address) {
            let offset = hex(rest.split_whitespace().nth(1).unwrap());
            let name = line.split_whitespace().nth(5).unwrap_or("anonymous");
            return format!("{name}+{:#x}", address - hex(start) + offset);
        }
    }
    String::from("not mapped")
}

#[inline(never)]
fn deep(depth: u32, leaf: &dyn Fn()) -> u32 {
    if depth == 0 {
        leaf();
        return 1;
    }
    black_box(deep(black_box(depth - 1), leaf)) + 1
}

#[test]
fn strings_and_sorting() {
    under_signals("strings", 5000, || {
        let mut words: Vec<String> = (0..50).map(|n| format!("{n:?}-{}", n * 7 % 13)).collect();
        words.sort();
        black_box(words);
    });
}

#[test]
fn recursion() {
    under_signals("recursion", 5000, || {
        deep(60, &|| drop(black_box(format!("{:?}", [1.5, 2.5]))));
    });
}

#[test]
fn recursion_deeper_than_the_buffer_is_truncated() {
    MAP.refresh_native(&mut |_| 0);
    let stack = stack_of_this_thread();
    let seen = Cell::new(None);
    deep(600, &|| {
        let mut out = [0; 100];
        // SAFETY: the registers are of this thread, here; the stack is its own.
        let walk = unsafe {
            let regs = here();
            stackwalk::walk(&MAP, regs, &stack, &mut Scratch::new(), &mut out)
        };
        seen.set(Some(walk));
    });
    let walk = seen.get().unwrap();
    assert_eq!((walk.depth, walk.end), (100, End::Truncated));
}

/// Returns the registers at this point.
#[inline(always)]
unsafe fn here() -> stackwalk::Regs {
    let (ip, sp, bp): (u64, u64, u64);
    // SAFETY: reads three registers.
    unsafe {
        std::arch::asm!(
            "lea {}, [rip]", "mov {}, rsp", "mov {}, rbp",
            out(reg) ip, out(reg) sp, out(reg) bp, options(nomem, nostack)
        );
    }
    stackwalk::Regs { ip, sp, bp, all: 0 }
}

#[test]
fn five_thousand_frames_are_walked_whole() {
    std::thread::Builder::new()
        .stack_size(64 << 20)
        .spawn(|| {
            MAP.refresh_native(&mut |_| 0);
            let stack = stack_of_this_thread();
            let seen = Cell::new(None);
            deep(5000, &|| {
                let mut out = vec![0; 6000];
                // SAFETY: as above.
                let walk = unsafe {
                    let regs = here();
                    stackwalk::walk(&MAP, regs, &stack, &mut Scratch::new(), &mut out)
                };
                seen.set(Some(walk));
            });
            let walk = seen.get().unwrap();
            assert_eq!(walk.end, End::Root);
            assert!((5001..5100).contains(&walk.depth), "{}", walk.depth);
        })
        .unwrap()
        .join()
        .unwrap();
}

#[test]
fn system_calls() {
    under_signals("system calls", 3000, || {
        let file = std::fs::read("/proc/self/stat").unwrap();
        black_box(file);
        std::thread::yield_now();
    });
}

#[test]
fn c_library() {
    extern "C" fn compare(a: *const libc::c_void, b: *const libc::c_void) -> i32 {
        // SAFETY: qsort gives pointers to elements.
        unsafe { (*a.cast::<i32>()).cmp(&*b.cast::<i32>()) as i32 }
    }
    under_signals("c library", 5000, || {
        let mut numbers: Vec<i32> = (0..300).map(|n| n * 7919 % 301).collect();
        let mut text = [0u8; 128];
        // SAFETY: valid pointers and lengths.
        unsafe {
            libc::qsort(numbers.as_mut_ptr().cast(), numbers.len(), 4, Some(compare));
            for n in 0..100 {
                libc::snprintf(
                    text.as_mut_ptr().cast(),
                    128,
                    c"%d %s %g".as_ptr(),
                    n,
                    c"x".as_ptr(),
                    1.5,
                );
                black_box(libc::strtod(text.as_ptr().cast(), std::ptr::null_mut()));
                let memory = libc::malloc(n as usize * 100 + 1);
                libc::memset(memory, 1, n as usize * 100);
                libc::free(black_box(memory));
            }
        }
    });
}

#[test]
fn panics_caught() {
    std::panic::set_hook(Box::new(|_| {}));
    // While libgcc installs a context it overwrites the saved registers of its own frame with those
    // of the frame that catches. For those few instructions the frame pointer of the frames between
    // is unknowable. Their share of a throw depends on the processor (1 % on some, 4 % on one with
    // AVX-512), so the place is checked instead of the share.
    let wrong = Wrong {
        library: "libgcc_s.so.1",
        // All of the library.
        bytes: 1 << 20,
        of_a_thousand: 80,
    };
    under_signals_but("panics", 3000, Some(&wrong), || {
        deep(10, &|| {
            let _ = std::panic::catch_unwind(|| {
                deep(5, &|| std::panic::resume_unwind(Box::new(1)));
            });
        });
    });
}

#[test]
fn dynamic_linker() {
    under_signals("dynamic linker", 3000, || {
        // SAFETY: a library of the C library's own, opened and closed. It is not in the map
        // until the next refresh, and its code does not run.
        unsafe {
            let library = libc::dlopen(c"libm.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
            black_box(libc::dlsym(library, c"cos".as_ptr()));
            libc::dlclose(library);
        }
    });
}

#[test]
fn threads_come_and_go() {
    under_signals("threads", 2000, || {
        std::thread::spawn(|| black_box(1)).join().unwrap();
    });
}

#[test]
fn signal_handler_of_the_program() {
    extern "C" fn slow(_: i32) {
        for n in 0..20_000u32 {
            black_box(n);
        }
    }
    for alternate in [false, true] {
        let mut memory = vec![0u8; 1 << 16];
        // SAFETY: a handler that touches nothing; the stack outlives its use.
        unsafe {
            let stack = libc::stack_t {
                ss_sp: memory.as_mut_ptr().cast(),
                ss_flags: if alternate { 0 } else { libc::SS_DISABLE },
                ss_size: memory.len(),
            };
            libc::sigaltstack(&stack, std::ptr::null_mut());
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = slow as *const () as usize;
            action.sa_flags = if alternate { libc::SA_ONSTACK } else { 0 };
            libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
        }
        under_signals("handler", 3000, || {
            // SAFETY: raises a signal that is handled.
            unsafe { libc::raise(libc::SIGUSR2) };
        });
    }
}

/// Returns a function of libcrypto.
///
/// # Safety
/// `F` is the function's type.
unsafe fn crypto<F: Copy>(name: &CStr) -> F {
    assert_eq!(size_of::<F>(), size_of::<*const ()>());
    // SAFETY: opens a library by its name, and looks up a name in it; a pointer to a function is a
    // pointer in size.
    unsafe {
        let library = libc::dlopen(c"libcrypto.so.3".as_ptr(), libc::RTLD_NOW);
        assert!(
            !library.is_null(),
            "no libcrypto.so.3: install Debian's package libssl3"
        );
        let function = libc::dlsym(library, name.as_ptr());
        assert!(!function.is_null(), "{name:?}");
        std::mem::transmute_copy(&function)
    }
}

type Object = *mut libc::c_void;
type Hash = unsafe extern "C" fn(*const u8, usize, *mut u8) -> *mut u8;
type New = unsafe extern "C" fn() -> Object;
type Number = unsafe extern "C" fn(*const u8, i32, Object) -> Object;
type Power = unsafe extern "C" fn(Object, Object, Object, Object, Object, Object) -> i32;
type Init = unsafe extern "C" fn(Object, Object, Object, *const u8, *const u8) -> i32;
type Update = unsafe extern "C" fn(Object, *mut u8, *mut i32, *const u8, i32) -> i32;

/// Hashes, large numbers and ciphers of OpenSSL, whose assembler keeps its caller's stack pointer
/// in slots and in registers that no other code uses for that. `without`: processor features that
/// are hidden from OpenSSL (OPENSSL_ia32cap), because it has separate code for each.
fn openssl(name: &str, without: &str, wrong: Option<&Wrong>) {
    let bytes: Vec<u8> = (0..16384u32).map(|n| (n * 7 + n / 255) as u8 | 1).collect();
    let mut out = vec![0u8; bytes.len() + 64];
    let (from, to, none) = (bytes.as_ptr(), out.as_mut_ptr(), std::ptr::null_mut());
    // SAFETY: the functions have these types and take these arguments by OpenSSL's manual; what
    // they write fits into `out`; what they make is never freed. No other thread reads the
    // environment while it is set.
    unsafe {
        std::env::set_var("OPENSSL_ia32cap", without);
        let hashes: [Hash; 4] = [
            crypto(c"SHA1"),
            crypto(c"SHA256"),
            crypto(c"SHA512"),
            crypto(c"MD5"),
        ];
        let number: Number = crypto(c"BN_bin2bn");
        let new = |name| crypto::<New>(name)();
        let powers: [Power; 2] = [
            crypto(c"BN_mod_exp_mont"),
            crypto(c"BN_mod_exp_mont_consttime"),
        ];
        let ciphers = [
            new(c"EVP_chacha20_poly1305"),
            new(c"EVP_aes_256_gcm"),
            new(c"EVP_aes_128_cbc_hmac_sha256"),
            new(c"EVP_aes_256_cbc"),
        ];
        let init: Init = crypto(c"EVP_EncryptInit_ex");
        let update: Update = crypto(c"EVP_EncryptUpdate");
        let (context, cipher) = (new(c"BN_CTX_new"), new(c"EVP_CIPHER_CTX_new"));
        // 512, 1,024 and 2,048 bits have their own code, 1,536 has not.
        let numbers = [64, 128, 192, 256].map(|len| number(from, len, none));
        let (result, base) = (new(c"BN_new"), number(from.add(100), 60, none));
        let exponent = number(from.add(200), 16, none);
        under_signals_but(name, 20_000, wrong, || {
            for hash in hashes {
                assert!(!hash(from, bytes.len(), to).is_null());
            }
            for modulus in numbers {
                for power in powers {
                    assert_eq!(power(result, base, exponent, modulus, context, none), 1);
                }
            }
            for kind in ciphers {
                let mut len = 0;
                assert_eq!(init(cipher, kind, none, from, from), 1);
                assert_eq!(update(cipher, to, &mut len, from, bytes.len() as i32), 1);
            }
        });
    }
    drop(out);
}

/// AES-CBC with SHA-256 by AVX2 (`aesni_cbc_sha256_enc_avx2`, also on a processor without SHA
/// instructions) frees its stack some twenty instructions before its table says so. Whether a
/// signal interrupts it there depends on the processor: of 20,000 walks 1 to 8 began there on one
/// with AVX-512, none on others.
const BY_AVX2: Wrong = Wrong {
    library: "libcrypto.so.3",
    bytes: 128,
    of_a_thousand: 2,
};

#[test]
fn openssl_with_all_of_the_processor() {
    openssl("openssl", "", Some(&BY_AVX2));
}

/// SHA by AVX2.
#[test]
fn openssl_without_sha_instructions() {
    openssl("openssl avx2", ":~0x20000000", Some(&BY_AVX2));
}

/// Multiplication and SHA by AVX.
#[test]
fn openssl_without_avx2() {
    openssl("openssl avx", ":~0x20080128", None);
}

/// SSE only.
#[test]
fn openssl_without_avx() {
    openssl("openssl sse", "~0x1000020000000000:~0x20080128", None);
}
