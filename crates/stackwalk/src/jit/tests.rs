//! Tests of JIT bodies at every instruction, with valid and invalid code headers.

mod live;

use super::*;
use crate::debug_info::Format;
use crate::oracle;

/// Bodies with prologues in all forms that the JIT of 3.1 and 8 writes, as hex.
const BODIES: &[(&str, &str)] = &[
    ("leaf", "8bc7 83c005 c3"),
    (
        "frameless, one push for alignment",
        "50 ff1500000000 90 4883c408 c3",
    ),
    (
        "frameless, saved registers",
        "55 53 50 488bdf ff1500000000 8be8 8bc5 4883c408 5b 5d c3",
    ),
    ("framed by mov", "55 488bec 48897df8 ff1500000000 90 5d c3"),
    (
        "framed by lea",
        "55 4157 4156 53 4883ec18 488d6c2430 488bdf e800000000 90 4883c418 5b 415e 415f 5d c3",
    ),
    (
        "epilogue by lea",
        "55 4156 53 4883ec10 488d6c2420 48897de8 e800000000 488d65f0 5b 415e 5d c3",
    ),
    (
        "large frame",
        "55 4881ec00100000 488dac2400100000 33c0 e800000000 4881c400100000 5d c3",
    ),
    ("two ways out", "50 85ff 7507 e800000000 ebf4 4883c408 c3"),
    (
        "vzeroupper on both ends",
        "55 c5f877 488bec e800000000 c5f877 5d c3",
    ),
    (
        "tail call through a cell",
        "53 488bdf e800000000 488bfb 5b 48ff2500000000",
    ),
    (
        "tail call by register",
        "50 488bc7 e800000000 4883c408 48ffe0",
    ),
    (
        "three pages, probed by the stack pointer (3.1)",
        "53 488d8424f0affeff 488da42400f0ffff 48850424 483be0 7def 488da010500100 4881ec10500100 \
         e800000000 90 4881c410500100 5b c3",
    ),
    (
        "the same with a frame pointer",
        "55 488d8424f0afffff 488da42400f0ffff 48850424 483be0 7def 488da010500000 4881ec10500000 \
         488dac2410500000 33c0 e800000000 90 488d6500 5d c3",
    ),
    (
        "two pages, probed by their addresses (3.1)",
        "53 4885842400f0ffff 4885842400e0ffff 4881ec10240000 e800000000 90 4881c410240000 5b c3",
    ),
    (
        "probed by a helper (since 5)",
        "55 4c8d9c24e0dffcff e800000000 498be3 488dac2420200300 33c0 e800000000 90 488d6500 5d c3",
    ),
    ("tail call, direct", "50 e800000000 4883c408 e900100000"),
];

fn bytes_of(hex: &str) -> &'static [u8] {
    let digits: Vec<u8> = hex
        .bytes()
        .filter(|digit| digit.is_ascii_hexdigit())
        .collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect::<Vec<u8>>().leak()
}

#[test]
fn decoded_bodies_are_true_at_every_instruction() {
    for (name, hex) in BODIES {
        let code = bytes_of(hex);
        let start = code.as_ptr() as u64;
        // SAFETY: the bytes live forever.
        let body = unsafe { body_from_code(start, code.len() as u32) };
        assert_eq!(body.source(), RuleSource::Prologue, "{name}");
        assert_eq!(body.agrees_with_code(), Some(true), "{name}");
        let info = unwind_info::UnwindInfo::parse(body.functions.infos()).unwrap();
        let end = info.prologue_end().into();
        let verdict = oracle::check(code, start, end, |at, exact| body.rule(at, exact));
        assert!(
            verdict.checked >= 3 && verdict.unjudged == 0,
            "{name}: {verdict:?}"
        );
        assert!(verdict.wrong.is_empty(), "{name}: {:#?}", verdict.wrong);
    }
}

/// Checks the oracle itself: it detects a rule that is wrong in one place.
#[test]
fn the_oracle_notices_a_wrong_rule() {
    let code = bytes_of("55 488bec ff1500000000 5d c3");
    let start = code.as_ptr() as u64;
    let wrong = |rule: Rule| oracle::check(code, start, 4, |_, _| Some(rule)).wrong.len();
    // True before the push and at the ret only; true from the mov to the pop only.
    assert_eq!(wrong(crate::rule::LEAF), 4);
    let framed = Rule::Frame {
        cfa: crate::rule::Cfa::Bp(16),
        ra: -8,
        bp: crate::rule::Bp::FromCfa(-16),
        assumed: false,
    };
    assert_eq!(wrong(framed), 3);
}

/// A code heap with a header, code and unwind data in the runtime's layout.
struct Heap {
    words: Box<[u64]>,
    functions: Vec<[u32; 3]>,
}

const METHOD: u64 = 0x7fff_1234_5678;
/// Offsets in the heap.
const HEADER: usize = 64;
const CODE: usize = 1024;
const UNWIND: usize = 2048;

impl Heap {
    /// `method_at`: index of the word that is the method; 3 on 3.1 and 8.
    fn new(method_at: usize, fragments: &[(&str, &[u8])]) -> Self {
        let mut bytes = vec![0u8; 4096];
        let (mut code_at, mut unwind_at, mut functions) = (CODE, UNWIND, Vec::new());
        for (hex, info) in fragments {
            let code = bytes_of(hex);
            bytes[code_at..code_at + code.len()].copy_from_slice(code);
            bytes[unwind_at..unwind_at + info.len()].copy_from_slice(info);
            functions.push([
                code_at as u32,
                (code_at + code.len()) as u32,
                unwind_at as u32,
            ]);
            code_at += code.len();
            unwind_at += info.len().next_multiple_of(4);
        }
        let words = bytes
            .chunks(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        let mut heap = Heap { words, functions };
        let base = heap.base();
        heap.put(CODE - 8, base + HEADER as u64);
        heap.put(HEADER + method_at * 8, METHOD);
        heap.put_functions(method_at);
        heap
    }

    fn base(&self) -> u64 {
        self.words.as_ptr() as u64
    }

    fn put(&mut self, at: usize, word: u64) {
        self.words[at / 8] = word;
    }

    fn put_half(&mut self, at: usize, half: u32) {
        let (shift, word) = (at % 8 * 8, &mut self.words[at / 8]);
        *word = *word & !(0xffff_ffff << shift) | u64::from(half) << shift;
    }

    fn put_functions(&mut self, method_at: usize) {
        let mut at = HEADER + method_at * 8 + 8;
        self.put_half(at, self.functions.len() as u32);
        for function in self.functions.clone() {
            for half in function {
                at += 4;
                self.put_half(at, half);
            }
        }
    }

    fn body(&self) -> Result<Body, Mismatch> {
        // SAFETY: the heap outlives the test's use of the body.
        unsafe { body_from_header(self.base() + CODE as u64, METHOD) }
    }
}

const MAIN: (&str, &[u8]) = (
    "55 4156 53 4883ec10 488d6c2420 e800000000 488d65f0 5b 415e 5d c3",
    // lea at 13: rbp = rsp + 32; sub 16 at 8; push rbx, r14, rbp
    &[
        1, 13, 5, 0x25, 13, 0x03, 8, 0x12, 4, 0x30, 3, 0xe0, 1, 0x50, 0, 0,
    ],
);
/// `push rbp; push r14; push rbx; sub rsp, 16; mov rbp, [rdi]; lea rbp, [rbp+32]; call; …`
const FUNCLET: (&str, &[u8]) = (
    "55 4156 53 4883ec10 488b2f 488d6d20 e800000000 4883c410 5b 415e 5d c3",
    &[1, 8, 4, 0, 8, 0x12, 4, 0x30, 3, 0xe0, 1, 0x50],
);

#[test]
fn headers_with_funclets_are_true_at_every_instruction() {
    for method_at in [3, 4, 1] {
        let heap = Heap::new(method_at, &[MAIN, FUNCLET]);
        let body = heap.body().unwrap();
        assert_eq!(body.source(), RuleSource::Header);
        assert_eq!(body.agrees_with_code(), Some(true));
        assert_eq!(body.functions.begins().len(), 2);
        assert_eq!(body.end(), heap.base() + u64::from(heap.functions[1][1]));
        for function in &heap.functions {
            let start = heap.base() + u64::from(function[0]);
            let code = body.bytes_at(start);
            let code = &code[..(function[1] - function[0]) as usize];
            let verdict = oracle::check(code, start, 13, |at, exact| body.rule(at, exact));
            assert!(
                verdict.wrong.is_empty() && verdict.checked > 10,
                "{:#?}",
                verdict.wrong
            );
        }
    }
}

/// Structures cross pages, and the page after them may not be readable.
#[test]
fn a_header_at_the_end_of_readable_memory_is_read_whole_and_nothing_behind_it() {
    const PAGE: usize = 4096;
    let (code, info) = (bytes_of(MAIN.0), MAIN.1);
    // SAFETY: fresh memory, which is ours alone.
    let base = unsafe {
        let (rights, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let base = libc::mmap(std::ptr::null_mut(), 3 * PAGE, rights, flags, -1, 0);
        assert_eq!(
            libc::mprotect(base, 2 * PAGE, libc::PROT_READ | libc::PROT_WRITE),
            0
        );
        base as u64
    };
    for method_at in [3, 4] {
        let put = |at: usize, bytes: &[u8]| {
            assert!(at + bytes.len() <= 2 * PAGE);
            // SAFETY: inside the two pages.
            unsafe { ((base as usize + at) as *mut u8).copy_from(bytes.as_ptr(), bytes.len()) };
        };
        let (code_at, info_at) = (1024, PAGE - 6);
        put(code_at, code);
        put(info_at, info);
        let mut header = vec![0; method_at * 8];
        header.extend(METHOD.to_le_bytes());
        let function = [code_at, code_at + code.len(), info_at].map(|rva| rva as u32);
        for half in [1].into_iter().chain(function) {
            header.extend(half.to_le_bytes());
        }
        let header_at = (2 * PAGE - header.len()) / 8 * 8;
        put(header_at, &vec![0; 2 * PAGE - header_at]);
        put(header_at, &header);
        put(code_at - 8, &(base + header_at as u64).to_le_bytes());
        // SAFETY: the memory stays, and the header is as this reads them.
        let known = unsafe { body_from_known_header(base + code_at as u64, METHOD) };
        // SAFETY: as above.
        let careful = unsafe { body_from_header(base + code_at as u64, METHOD) };
        assert_eq!(known, careful, "method at {method_at}");
        assert_eq!(known.unwrap().agrees_with_code(), Some(true));
    }
}

#[test]
fn headers_that_are_not_consistent_are_not_believed() {
    type Spoil = fn(&mut Heap);
    let cases: &[(Mismatch, Spoil)] = &[
        (Mismatch::NoHeader, |heap| heap.put(CODE - 8, 5)),
        (Mismatch::NoHeader, |heap| {
            heap.put(CODE - 8, heap.base() + 3)
        }),
        (Mismatch::Unreadable, |heap| heap.put(CODE - 8, 0x1000)),
        (Mismatch::OtherMethod, |heap| {
            heap.put(HEADER + 24, METHOD + 8)
        }),
        (Mismatch::Inconsistent, |heap| heap.put_half(HEADER + 32, 0)),
        (Mismatch::Inconsistent, |heap| {
            heap.put_half(HEADER + 32, 5000)
        }),
        // Ends before it begins; begins before the code; overlaps; unwind data at another address.
        (Mismatch::Inconsistent, |heap| heap.functions[0][1] = 3),
        (Mismatch::Inconsistent, |heap| heap.functions[1][0] = 3),
        (Mismatch::Inconsistent, |heap| {
            heap.functions[1][0] = heap.functions[0][0] + 1
        }),
        (Mismatch::Inconsistent, |heap| {
            heap.functions[1][2] = 0xf000_0000
        }),
        // An unwind code that does not exist, a frame register that is not rbp.
        (Mismatch::Inconsistent, |heap| {
            heap.put_half(UNWIND + 4, 0x0f0d)
        }),
        (Mismatch::Inconsistent, |heap| {
            heap.put_half(UNWIND, 0x2305_0d01)
        }),
    ];
    for (index, (expected, spoil)) in cases.iter().enumerate() {
        let mut heap = Heap::new(3, &[MAIN, FUNCLET]);
        let before = heap.functions.clone();
        spoil(&mut heap);
        if heap.functions != before {
            heap.put_functions(3);
        }
        assert_eq!(heap.body(), Err(*expected), "case {index}");
    }
    // SAFETY: not readable, which is what it must notice.
    let nowhere = unsafe { body_from_header(0x1008, METHOD) };
    assert_eq!(nowhere, Err(Mismatch::Unreadable));
}

/// OSR bodies take over the frame of another body, so their prologue alone is not sufficient. A
/// method that calls native code has no debug information on .NET 11. It has no map, which is not
/// an error.
#[test]
fn a_body_without_debug_information_has_no_il_map() {
    let mut heap = Heap::new(3, &[MAIN]);
    let read = |heap: &Heap| {
        let (start, format) = (heap.base() + CODE as u64, Format::Plain);
        let (mut one, mut other) = (Vec::new(), Vec::new());
        // SAFETY: the heap outlives the reading, and is laid out as a runtime does.
        let slow = unsafe { il_map(start, METHOD, format, &mut one) };
        // SAFETY: the same.
        let fast = unsafe { il_map_of_known_header(start, METHOD, format, true, &mut other) };
        assert_eq!((slow, &one), (fast, &other));
        slow.map(|skipped| (skipped, one))
    };
    assert_eq!(read(&heap), Ok((Skipped::Nothing, vec![])));
    let base = heap.base();
    heap.put(HEADER, base + 512);
    // Two bytes and none, one entry: native 0, IL 0 and its source.
    heap.put(512, 0x33_01_02);
    assert_eq!(read(&heap), Ok((Skipped::Nothing, vec![(0, 0)])));
}

#[test]
fn the_prologue_of_an_osr_body_is_not_decoded() {
    let code = bytes_of("488b4500 50 488bec 4883ec20 c3");
    // SAFETY: the bytes live forever.
    let body = unsafe { body_from_code(code.as_ptr() as u64, code.len() as u32) };
    assert_eq!(body.source(), RuleSource::FramePointer);
    assert_eq!(body.rule(body.start() + 6, false), Some(FRAME_POINTER));
    assert!(body.begins_on_a_frame());
    let code = bytes_of("55 488bec 4883ec20 c3");
    // SAFETY: the bytes live forever.
    let body = unsafe { body_from_code(code.as_ptr() as u64, code.len() as u32) };
    assert!(!body.begins_on_a_frame());
}
