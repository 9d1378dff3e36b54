//! Tests with real seccomp filters, each in a forked child because a filter cannot be removed.

use syscalls::{Call, Verdict, first_fatal, is_allowed, is_filtered, refresh, verdict};

const LOAD_NUMBER: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// Installs a filter that gives these system calls this answer.
fn filter(numbers: &[libc::c_long], answer: u32) {
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = vec![step(LOAD_NUMBER, 0, 0, 0)];
    for number in numbers {
        steps.push(step(JUMP_IF_EQUAL, 0, 1, u32::try_from(*number).unwrap()));
        steps.push(step(RETURN, 0, 0, answer));
    }
    steps.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog {
        len: u16::try_from(steps.len()).unwrap(),
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: a valid program, which the kernel checks and copies.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program),
            0
        );
    }
}

/// Runs `check` in a forked child and returns its exit status.
fn apart(check: impl FnOnce()) -> i32 {
    // SAFETY: the child runs `check` and ends at once.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).is_ok();
        // SAFETY: ends the child without the test harness's handlers.
        unsafe { libc::_exit(if held { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: our child and a valid out-pointer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

/// Whether the process has children, zombies included.
fn has_children() -> bool {
    let mut status = 0;
    let any = libc::WNOHANG | libc::__WALL;
    // SAFETY: a valid out-pointer.
    unsafe { libc::waitpid(-1, &raw mut status, any) >= 0 }
}

#[test]
fn without_a_filter_nothing_is_tried_and_all_is_allowed() {
    let status = apart(|| {
        assert!(!is_filtered());
        refresh();
        for call in Call::all() {
            assert_eq!(verdict(call), Verdict::Unfiltered);
            assert!(is_allowed(call), "{call:?}");
        }
    });
    assert_eq!(status, 0);
}

#[test]
fn all_is_let_through_by_a_filter_of_something_else() {
    let status = apart(|| {
        filter(&[libc::SYS_swapoff], libc::SECCOMP_RET_KILL_PROCESS);
        assert!(is_filtered());
        refresh();
        for call in Call::all() {
            // PerfEventOpen may be refused because the kernel here allows it to no user.
            let is_refused = call == Call::PerfEventOpen;
            assert!(
                is_allowed(call) || is_refused,
                "{call:?}: {:?}",
                verdict(call)
            );
        }
        assert_eq!(first_fatal(), None);
        assert!(!has_children());
    });
    assert_eq!(status, 0);
}

#[test]
fn what_ends_a_process_ends_a_throwaway_child() {
    for answer in [
        libc::SECCOMP_RET_KILL_PROCESS,
        libc::SECCOMP_RET_KILL_THREAD,
        libc::SECCOMP_RET_TRAP,
    ] {
        let status = apart(|| {
            let ending = [
                (Call::ProcessVmReadv, libc::SYS_process_vm_readv),
                (Call::RtTgsigqueueinfo, libc::SYS_rt_tgsigqueueinfo),
                (Call::TimerCreate, libc::SYS_timer_create),
                (Call::Geteuid, libc::SYS_geteuid),
            ];
            filter(&ending.map(|(_, number)| number), answer);
            // Not allowed before it has been tried.
            assert!(!is_allowed(Call::ProcessVmReadv));
            refresh();
            for (call, _) in ending {
                assert_eq!(verdict(call), Verdict::Ends, "{call:?}");
                assert!(!is_allowed(call));
            }
            assert_eq!(verdict(Call::TimerSettime), Verdict::LetThrough);
            assert_eq!(first_fatal(), Some(Call::Geteuid));
            assert!(!has_children());
        });
        assert_eq!(status, 0, "{answer:#x}");
    }
}

#[test]
fn a_refusal_has_its_errno() {
    for errno in [libc::ENOSYS, libc::EPERM] {
        let status = apart(|| {
            let answer = libc::SECCOMP_RET_ERRNO | errno.unsigned_abs();
            filter(&[libc::SYS_rt_tgsigqueueinfo], answer);
            refresh();
            assert_eq!(verdict(Call::RtTgsigqueueinfo), Verdict::Refused(errno));
            assert_eq!(syscalls::refusal(Call::RtTgsigqueueinfo), errno);
            assert!(is_allowed(Call::TimerCreate));
        });
        assert_eq!(status, 0, "errno {errno}");
    }
}

#[test]
fn where_no_child_can_be_taken_in_there_is_one_at_most() {
    let status = apart(|| {
        filter(&[libc::SYS_wait4], libc::SECCOMP_RET_KILL_PROCESS);
        refresh();
        assert_eq!(verdict(Call::Wait4), Verdict::Ends);
        assert!(Call::all().all(|call| !is_allowed(call)));
        assert!(first_fatal().is_some());
    });
    assert_eq!(status, 0);
}

#[test]
fn where_no_child_can_be_made_nothing_is_allowed() {
    let status = apart(|| {
        let answer = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
        filter(&[libc::SYS_clone, libc::SYS_clone3], answer);
        refresh();
        assert_eq!(verdict(Call::TimerCreate), Verdict::Untried);
        assert!(!is_allowed(Call::TimerCreate));
    });
    assert_eq!(status, 0);
}

#[test]
fn a_filter_that_comes_later_is_seen() {
    let status = apart(|| {
        filter(&[libc::SYS_swapoff], libc::SECCOMP_RET_KILL_PROCESS);
        refresh();
        assert!(is_allowed(Call::ProcessVmReadv));
        filter(
            &[libc::SYS_process_vm_readv],
            libc::SECCOMP_RET_KILL_PROCESS,
        );
        refresh();
        assert!(!is_allowed(Call::ProcessVmReadv));
    });
    assert_eq!(status, 0);
}
