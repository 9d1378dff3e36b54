//! Prints the share of code in libraries of some folders that can be unwound, and how.
//!
//! `cargo run --release -p stackwalk --example corpus /usr/lib/x86_64-linux-gnu DIR…`
//!
//! It prints one line for each library in which a walk could end, or which needs more than packed
//! rules. The last line is the total.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Sum, libraries};
use stackwalk::survey::LeaveMethod;
use std::path::PathBuf;

fn main() {
    let folders: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let folders = if folders.is_empty() {
        vec![PathBuf::from("/usr/lib/x86_64-linux-gnu")]
    } else {
        folders
    };
    let found = libraries(&folders);
    println!(
        "| library | described, KiB | evaluated | in a register | not packed | not walked | … calls | … expressions | … malformed |"
    );
    println!("| --- | --: | --: | --: | --: | --: | --: | --: | --: |");
    let mut all = Sum::default();
    for (path, sum) in &found {
        all.add(sum);
        if sum.way(LeaveMethod::Evaluated) + sum.not_walked() > 0 {
            line(&path.file_name().unwrap_or_default().to_string_lossy(), sum);
        }
    }
    line(&format!("all {} libraries", found.len()), &all);
}

fn line(name: &str, sum: &Sum) {
    let percent = sum.not_walked() as f64 * 100.0 / sum.described().max(1) as f64;
    println!(
        "| {name} | {} | {} | {} | {} | {} ({percent:.4} %) | {} | {} | {} |",
        sum.described() / 1024,
        sum.way(LeaveMethod::Evaluated),
        sum.way(LeaveMethod::Register),
        sum.way(LeaveMethod::Unpacked),
        sum.not_walked(),
        sum.calls,
        sum.way(LeaveMethod::UnknownExpression),
        sum.way(LeaveMethod::Malformed),
    );
}
