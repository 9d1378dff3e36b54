//! Finds the processor that a thread runs on, for a few instructions.
//!
//! Not a promise: the thread may be on another one before the answer is used. Invariant: asking
//! makes no call, of the kernel or of the C library.

use std::arch::asm;

/// Where the answer is, in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Processor {
    /// From the thread pointer to the number that the kernel keeps there (rseq(2): `cpu_id`).
    at: isize,
}

impl Processor {
    /// Nothing where the kernel tells no thread its processor: before glibc 2.35, or where that is
    /// switched off (the tunable `glibc.pthread.rseq`).
    pub fn find() -> Option<Processor> {
        /// Of `cpu_id` in `struct rseq` (linux/rseq.h).
        const CPU_ID: isize = 4;
        // SAFETY: names end with a zero; what is found is asked for nothing but its place.
        let [offset, size] = [c"__rseq_offset", c"__rseq_size"]
            .map(|name| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) });
        if offset.is_null() || size.is_null() {
            return None;
        }
        // SAFETY: glibc's variables, `const ptrdiff_t` and `const unsigned int` (sys/rseq.h),
        // written before the program's first instruction and never again.
        let (offset, size) = unsafe { (*offset.cast::<isize>(), *size.cast::<u32>()) };
        // 0 where the area is not registered with the kernel.
        (size != 0).then_some(Processor {
            at: offset.checked_add(CPU_ID)?,
        })
    }

    /// The number of the processor that this thread was on just now. On a thread of the C library
    /// only.
    #[inline]
    pub fn now(self) -> u32 {
        let number: u32;
        // SAFETY: each thread that the C library has made, and the first one, has the area there,
        // behind its thread pointer (`find`); the number in it is aligned, and written by the
        // kernel before the thread runs on.
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
