//! Arguments of `sidewalk diff`, and the rules of `--fail-on`. Their effects are elsewhere.
//!
//! Invariant: a rule holds only if a change is statistically certain.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser};
use profile::ops::{AmountPair, DiffRow, GroupBy, Scaling};
use recording::Event;
use regex::Regex;

use super::View;
use crate::candidates;
use crate::units;

/// Show what changed between recordings, and whether it is more than chance
#[derive(Args, Debug)]
#[command(
    override_usage = "sidewalk diff [OPTIONS] BEFORE AFTER\n       sidewalk diff [OPTIONS] --before FILE... --after FILE...",
    after_help = "Examples:
  sidewalk diff before.swk after.swk
  sidewalk diff before.swk after.swk --fail-on '+5% Shop.*' --json -o diff.json
  sidewalk diff --before a1.swk a2.swk a3.swk --after b1.swk b2.swk b3.swk

With three or more recordings on both sides, runs are compared with runs; with fewer, slices of
time, which do not show how much one run differs from the next.

Exit code: 3 when a rule of --fail-on matches, else 0."
)]
pub(crate) struct DiffArgs {
    /// The recording (.swk) before and the one after
    #[arg(value_names = ["BEFORE", "AFTER"], num_args = 2, required_unless_present_all = ["before", "after"], add = candidates::recordings())]
    pub(crate) files: Vec<PathBuf>,

    /// Recordings from before the change
    #[arg(long, value_name = "FILE", num_args = 1.., add = candidates::recordings())]
    pub(crate) before: Vec<PathBuf>,

    /// Recordings from after the change
    #[arg(long, value_name = "FILE", num_args = 1.., add = candidates::recordings())]
    pub(crate) after: Vec<PathBuf>,

    /// Write OUT in the format of its ending: .html (a flame graph of both) .json .txt; may be
    /// given several times [default: the table on stdout]
    #[arg(short, long = "output", value_name = "OUT", value_parser = Output::parser(), add = candidates::files())]
    pub(crate) outputs: Vec<Output>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// End with exit code 3 on this change of self or total time: '+5% Shop.*' (5 % more than
    /// before), '-10% *' (10 % less); may be given several times
    #[arg(long, value_name = "RULE", value_parser = Rule::parse)]
    pub(crate) fail_on: Vec<Rule>,

    /// The event to compare [default: the one sampled by time, else the one with most samples]
    #[arg(short, long, value_name = "NAME", value_parser = units::event, add = candidates::events())]
    pub(crate) event: Option<Event>,

    /// Rows: method, line, module
    #[arg(long, value_name = "WHAT", default_value = "method", value_parser = by)]
    pub(crate) by: GroupBy,

    /// Amounts to compare: whole (shares of all samples, for runs of different work) or second (per
    /// second, for services under the same load)
    #[arg(long, value_name = "WHAT", default_value = "whole", value_parser = per)]
    pub(crate) per: Scaling,

    /// Rows of the table
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub(crate) top: usize,

    /// Also show changes that may be chance, marked by ?
    #[arg(long)]
    pub(crate) all: bool,

    #[command(flatten)]
    pub(crate) view: View,
}

fn by(text: &str) -> Result<GroupBy, String> {
    let known = [GroupBy::Method, GroupBy::Line, GroupBy::Module];
    let found = known.into_iter().find(|by| by.name() == text);
    found.ok_or_else(|| "expected one of method, line, module".to_owned())
}

fn per(text: &str) -> Result<Scaling, String> {
    match text {
        "whole" => Ok(Scaling::Whole),
        "second" => Ok(Scaling::Second),
        _ => Err("expected whole or second".to_owned()),
    }
}

/// The output form of a comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DiffOutputFormat {
    Text,
    Json,
    Html,
}

/// A requested output file.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub(crate) path: PathBuf,
    pub(crate) format: DiffOutputFormat,
}

impl Output {
    fn parser() -> impl TypedValueParser<Value = Output> {
        PathBufValueParser::new().try_map(|path| {
            let ending = path.extension().map(|ending| ending.to_ascii_lowercase());
            let format = match ending.as_ref().and_then(|ending| ending.to_str()) {
                Some("html") => DiffOutputFormat::Html,
                Some("json") => DiffOutputFormat::Json,
                Some("txt") => DiffOutputFormat::Text,
                _ => return Err("the ending must be that of a format: .html, .json, .txt"),
            };
            Ok(Output { path, format })
        })
    }
}

/// A rule of `--fail-on`.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) text: String,
    /// Whether the rule is for growth, not shrinkage.
    grew: bool,
    /// Minimum change, as a fraction of the amount before.
    least: f64,
    name: Regex,
}

impl Rule {
    fn parse(text: &str) -> Result<Rule, String> {
        let wrong = || "expected a sign, percent and a name, such as '+5% Shop.*'".to_owned();
        let (amount, name) = text.trim().split_once('%').ok_or_else(wrong)?;
        let grew = match amount.chars().next() {
            Some('+') => true,
            Some('-') => false,
            _ => return Err(wrong()),
        };
        let percent: f64 = amount[1..].trim().parse().map_err(|_| wrong())?;
        let name = name.trim();
        if name.is_empty() || !percent.is_finite() || percent < 0.0 {
            return Err(wrong());
        }
        let parts: Vec<String> = name.split('*').map(regex::escape).collect();
        let name =
            Regex::new(&format!("^{}$", parts.join(".*"))).map_err(|error| error.to_string())?;
        Ok(Rule {
            text: text.trim().to_owned(),
            grew,
            least: percent / 100.0,
            name,
        })
    }

    pub(crate) fn is_exceeded(&self, row: &DiffRow) -> bool {
        let both = [row.own, row.total];
        let by = |relative: f64| if self.grew { relative } else { -relative };
        let enough = |of: &AmountPair| of.certain && by(of.relative()) >= self.least;
        self.name.is_match(&row.group.label) && both.iter().any(enough)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules() {
        for (text, name, is_match) in [
            ("+5% Shop.*", "Shop.Cart.Checkout", true),
            ("+5% Shop.*", "Shopping.Cart", false),
            ("+5% *.Checkout", "Shop.Cart.Checkout", true),
            ("- 10 % *", "anything", true),
            ("+0.5%Shop.Cart<int>.Add", "Shop.Cart<int>.Add", true),
            ("+0.5%Shop.Cart<int>.Add", "ShopXCart<int>.Add", false),
        ] {
            let rule = Rule::parse(text).unwrap();
            assert_eq!(rule.name.is_match(name), is_match, "{text} {name}");
        }
        for text in [
            "", "5% x", "+x% y", "+5%", "+5 Shop", "+-5% x", "+inf% x", "é5% x",
        ] {
            assert!(Rule::parse(text).is_err(), "{text}");
        }
    }
}
