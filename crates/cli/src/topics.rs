//! Help topics beside the verbs: `sidewalk help events` and the like.
//!
//! This module has the texts. Tests check that the names in them can be typed.

/// A name and its text.
pub(crate) const TOPICS: [(&str, &str); 4] = [
    ("events", include_str!("topics/events.txt")),
    ("walkers", include_str!("topics/walkers.txt")),
    ("engines", include_str!("topics/engines.txt")),
    ("outputs", include_str!("topics/outputs.txt")),
];

/// The text about a topic.
pub(crate) fn text(name: &str) -> Option<&'static str> {
    let mut topics = TOPICS.iter();
    topics
        .find(|(known, _)| *known == name)
        .map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units;
    use formats::Format;

    fn assert_names(name: &str, expected: &[&str]) {
        let text = text(name).unwrap();
        let first_words = text.lines().filter_map(|line| {
            let word = line.strip_prefix("  ")?;
            let (word, _) = word.split_once("  ")?;
            (!word.is_empty()).then_some(word)
        });
        let mut named: Vec<&str> = first_words
            .filter(|word| !word.starts_with("sidewalk"))
            .collect();
        named.sort_unstable();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(named, expected, "{name}");
        assert!(text.lines().count() <= 40, "{name} does not fit a screen");
        let longest = text.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(100), "{name}: {longest:?}");
    }

    #[test]
    fn topics_name_what_can_be_typed() {
        let events = units::RECORDED.map(|event| event.name());
        assert_names("events", &events);
        assert_names("walkers", &units::WALKERS);
        assert_names("engines", &units::ENGINES);
        let mut endings = Format::ALL.map(|format| format.ending()).to_vec();
        endings.push(".swk");
        assert_names("outputs", &endings);
    }
}
