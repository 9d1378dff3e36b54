//! The processor on which the calling thread runs, read from the thread's rseq area.
//!
//! A read takes a few instructions. The thread may move to another processor before the result is
//! used. Invariant: a read makes no system call and no call of the C library.

use std::arch::asm;

/// The location of the processor number in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Processor {
    /// Offset from the thread pointer to the number that the kernel updates (rseq(2): `cpu_id`).
    at: isize,
}

impl Processor {
    /// Returns `None` if the kernel updates no such number: before glibc 2.35, or if it is disabled
    /// (the tunable `glibc.pthread.rseq`).
    pub fn find() -> Option<Processor> {
        /// Offset of `cpu_id` in `struct rseq` (linux/rseq.h).
        const CPU_ID: isize = 4;
        // SAFETY: names end with a zero; only the addresses of the symbols are used.
        let [offset, size] = [c"__rseq_offset", c"__rseq_size"]
            .map(|name| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) });
        if offset.is_null() || size.is_null() {
            return None;
        }
        // SAFETY: glibc's variables, `const ptrdiff_t` and `const unsigned int` (sys/rseq.h),
        // written before the program's first instruction and never again.
        let (offset, size) = unsafe { (*offset.cast::<isize>(), *size.cast::<u32>()) };
        // 0 if the area is not registered with the kernel.
        (size != 0).then_some(Processor {
            at: offset.checked_add(CPU_ID)?,
        })
    }

    /// Returns the processor that this thread was on just now. Must be called on a thread of the C
    /// library.
    #[inline]
    pub fn now(self) -> u32 {
        let number: u32;
        // SAFETY: each thread that the C library created, and the first one, has the area there,
        // behind its thread pointer (`find`). The number in it is aligned, and the kernel writes it
        // before the thread continues.
        unsafe {
            asm!(
                "mov {number:e}, fs:[{at}]",
                at = in(reg) self.at,
                number = out(reg) number,
                options(nostack, preserves_flags, readonly),
            );
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_processor_that_a_thread_is_bound_to() {
        let Some(processor) = Processor::find() else {
            // SAFETY: the C library's version is a text.
            let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
            let version: f64 = version.to_str().unwrap().parse().unwrap();
            assert!(version < 2.35, "glibc {version} has it");
            return;
        };
        // SAFETY: a set of bits, all of which may be 0.
        let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::cpu_set_t>();
        // SAFETY: the set is of that size; 0 is this thread.
        let answer = unsafe { libc::sched_getaffinity(0, size, &raw mut allowed) };
        assert_eq!(answer, 0);
        for number in 0..libc::CPU_SETSIZE as usize {
            // SAFETY: within the set.
            if !unsafe { libc::CPU_ISSET(number, &allowed) } {
                continue;
            }
            let reported = std::thread::spawn(move || {
                // SAFETY: as above; only this thread is bound.
                unsafe {
                    let mut one: libc::cpu_set_t = std::mem::zeroed();
                    libc::CPU_SET(number, &mut one);
                    assert_eq!(libc::sched_setaffinity(0, size, &raw const one), 0);
                }
                processor.now()
            });
            assert_eq!(reported.join().unwrap() as usize, number);
        }
    }
}
