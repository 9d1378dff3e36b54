//! `below-filter ANSWER CALL[,CALL…] COMMAND…`: runs a command with filtered system calls.
//!
//! A sandbox does the same.
//!
//! ANSWER is the result of the filtered system calls: `kill` ends the process, the name of an errno
//! is returned. CALL is a name in the table of crate `syscalls`.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use syscalls::Call;

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let mut text = || {
        let argument = arguments.next().expect("ANSWER CALLS COMMAND");
        argument.into_string().expect("text")
    };
    let (answer, calls) = (text(), text());
    let errno = |errno: i32| libc::SECCOMP_RET_ERRNO | errno.unsigned_abs();
    let answer = match &*answer {
        "kill" => libc::SECCOMP_RET_KILL_PROCESS,
        "ENOSYS" => errno(libc::ENOSYS),
        "EPERM" => errno(libc::EPERM),
        other => panic!("no answer {other}"),
    };
    let numbers = calls.split(',').map(|name| {
        let call = Call::all().find(|call| call.name() == name);
        call.unwrap_or_else(|| panic!("no call {name}")).number()
    });
    install(numbers, answer);
    let command = arguments.next().expect("a command");
    let error = Command::new(command).args(arguments).exec();
    panic!("{error}");
}

fn install(numbers: impl Iterator<Item = libc::c_long>, answer: u32) {
    const LOAD_NUMBER: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = vec![step(LOAD_NUMBER, 0, 0, 0)];
    for number in numbers {
        let number = u32::try_from(number).expect("a small number");
        steps.push(step(JUMP_IF_EQUAL, 0, 1, number));
        steps.push(step(RETURN, 0, 0, answer));
    }
    steps.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog {
        len: u16::try_from(steps.len()).expect("a short program"),
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: the program is valid. The kernel checks and copies it.
    let failed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ) != 0
    };
    assert!(!failed, "{}", std::io::Error::last_os_error());
}
