//! What the targets do, and what must hold. Compiled into the fuzz targets and into the plain test
//! over the corpus; neither uses all of it.
#![allow(dead_code, reason = "each target uses one of the functions")]

use profile::Import;
use profile::ops::{
    Direction, GroupBy, StackView, Tree, Weight, totals, with_stack_view, without_native,
};
use recording::{BlockSplitter, Item, MethodKind, Reader, file_header};

/// Reads bytes as a recording, with a header in front where they have none, and makes a profile.
///
/// # Panics
/// Something that must hold does not.
pub(crate) fn recording(bytes: &[u8]) {
    let with_header;
    let file = if bytes.starts_with(&recording::FILE_MAGIC) {
        bytes
    } else {
        with_header = [file_header("fuzz"), bytes.to_vec()].concat();
        &with_header
    };
    let Ok(mut reader) = Reader::open(file) else {
        return;
    };
    let mut import = Import::new();
    let (mut samples, mut passed_over) = (0, 0);
    while let Some(item) = reader.next_item().expect("memory can be read") {
        match &item {
            Item::Record(_, recording::Record::Sample { .. }) => samples += 1,
            Item::Record(..) | Item::Newer(_) => {}
            Item::Damage(damage) => passed_over += damage.length,
        }
        import.item(&item);
    }
    assert!(passed_over <= file.len() as u64, "no byte is lost twice");

    let profile = import.finish();
    assert_eq!(profile.samples.len(), samples, "every sample stays");
    assert!(profile.samples.is_sorted_by_key(|sample| sample.time_ns));
    let parents_first = |(id, stack): (usize, &profile::model::Stack)| {
        stack.parent.is_none_or(|parent| (parent.0 as usize) < id)
    };
    assert!(profile.stacks.iter().enumerate().all(parents_first));
    let sum = |weights: &mut dyn Iterator<Item = Weight>| {
        let mut sum = Weight::default();
        weights.for_each(|weight| sum += weight);
        sum.samples
    };
    for by in [
        GroupBy::Method,
        GroupBy::Line,
        GroupBy::Module,
        GroupBy::Runtime,
        GroupBy::Thread,
        GroupBy::Event,
        GroupBy::Process,
    ] {
        let rows = totals(&profile, by, |_| true);
        assert_eq!(sum(&mut rows.iter().map(|row| row.own)), samples as u64);
    }
    for stacks in StackView::ALL {
        let seen = with_stack_view(profile.clone(), stacks);
        let rows = totals(&seen, GroupBy::Method, |_| true);
        assert_eq!(sum(&mut rows.iter().map(|row| row.own)), samples as u64);
    }
    let tree = Tree::new(&profile, GroupBy::Method, Direction::Callees, |_| true);
    assert_eq!(tree.root().total.samples, samples as u64);
    assert_eq!(without_native(profile).samples.len(), samples);

    split(bytes);
}

/// Blocks that the splitter lets through are blocks that the reader takes.
fn split(bytes: &[u8]) {
    let mut splitter = BlockSplitter::new();
    for part in bytes.chunks(97) {
        splitter.feed(part);
        loop {
            match splitter.next_block() {
                Ok(Some(block)) => {
                    let file = [file_header(""), block.bytes.to_vec()].concat();
                    let mut reader = Reader::open(file.as_slice()).expect("it has a header");
                    while let Some(item) = reader.next_item().expect("memory can be read") {
                        if let Item::Damage(damage) = item {
                            let reason = damage.reason;
                            let corrupt = matches!(
                                reason,
                                recording::DamageReason::Corrupt
                                    | recording::DamageReason::Truncated
                            );
                            assert!(!corrupt, "{damage:?}");
                        }
                    }
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

/// Takes bytes for coded records and puts whole blocks around them, so that fuzzing gets past the
/// checksums. The bytes are cut at `0xFE 0xED`; blocks go to two processes in turn.
///
/// # Panics
/// Something that must hold does not.
pub(crate) fn records(bytes: &[u8]) {
    let mut file = file_header("fuzz");
    let mut rest = bytes;
    for number in 0u32.. {
        let cut = rest.windows(2).position(|window| window == [0xFE, 0xED]);
        let (block, after) = cut.map_or((rest, &[][..]), |cut| (&rest[..cut], &rest[cut + 2..]));
        file.extend_from_slice(&whole_block(u64::from(number % 2), number / 2, block));
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    recording(&file);
}

/// The block of `docs/recording-format.md`, stored.
fn whole_block(process: u64, sequence: u32, records: &[u8]) -> Vec<u8> {
    let length = u32::try_from(records.len())
        .expect("inputs are small")
        .to_le_bytes();
    let mut block = recording::SYNC.to_vec();
    block.extend_from_slice(&[recording::BLOCK_VERSION, 0, 0, 0]);
    block.extend_from_slice(&length);
    block.extend_from_slice(&length);
    block.extend_from_slice(&process.to_le_bytes());
    block.extend_from_slice(&sequence.to_le_bytes());
    block.extend_from_slice(&crc32fast::hash(records).to_le_bytes());
    let checksum = crc32fast::hash(&block).to_le_bytes();
    block.extend_from_slice(&checksum);
    block.extend_from_slice(records);
    block
}

/// Makes a name readable.
pub(crate) fn names(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (type_name, name) = text.split_once('\n').unwrap_or((&text, "M"));
    for kind in [MethodKind::Il, MethodKind::Dynamic, MethodKind::IlStub] {
        let _ = profile::names::method(kind, type_name, name);
    }
}
