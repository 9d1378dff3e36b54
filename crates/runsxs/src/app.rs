//! Checks a program before it runs: it exists, is a .NET assembly and has an entry point.
//!
//! It also reads `configProperties` of the runtimeconfig.json. The CLR would end the process for a
//! missing program, without an error message.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// A program that can be run.
#[derive(Debug)]
pub(crate) struct App {
    /// Absolute path.
    pub(crate) path: PathBuf,
    /// `configProperties` of its runtimeconfig.json.
    pub(crate) properties: Vec<(String, String)>,
}

impl App {
    /// Opens and checks a program.
    ///
    /// # Errors
    /// The program does not exist, is not a .NET assembly, has no entry point, or its configuration
    /// cannot be read.
    pub(crate) fn open(path: &Path) -> Result<App> {
        let shown = path.display();
        let path = path
            .canonicalize()
            .with_context(|| format!("no program {shown}"))?;
        let image = fs::read(&path).with_context(|| format!("cannot read {shown}"))?;
        match entry_point(&image) {
            None => bail!("{shown} is no .NET assembly"),
            Some(0) => bail!("{shown} has no entry point: it is a library"),
            Some(_) => {}
        }
        let properties = properties(&path.with_extension("runtimeconfig.json"))?;
        Ok(App { path, properties })
    }
}

/// The token of `Main`, 0 if there is none. `None` if the file is not a .NET assembly (ECMA-335,
/// II.25.2 and II.25.3.3).
fn entry_point(image: &[u8]) -> Option<u32> {
    let word = |at: usize| {
        let bytes = image.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let half = |at| Some(word(at)? & 0xffff);
    let pe = word(0x3c)? as usize;
    if image.get(..2)? != b"MZ" || word(pe)? != u32::from_le_bytes(*b"PE\0\0") {
        return None;
    }
    let sections = half(pe + 6)? as usize;
    let optional = pe + 24;
    let directories = match half(optional)? {
        0x10b => optional + 96,
        0x20b => optional + 112,
        _ => return None,
    };
    let cli = word(directories + 14 * 8)?;
    let table = optional + half(pe + 20)? as usize;
    let header = (0..sections).find_map(|index| {
        let section = table + index * 40;
        let start = word(section + 12)?;
        let within = cli.checked_sub(start)?;
        (cli != 0 && within < word(section + 16)?)
            .then_some(word(section + 20)?.checked_add(within)? as usize)
    })?;
    word(header + 20)
}

/// Reads the configuration; empty if the file does not exist.
fn properties(path: &Path) -> Result<Vec<(String, String)>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let json: Value =
        serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
    let Some(given) = json["runtimeOptions"].get("configProperties") else {
        return Ok(Vec::new());
    };
    let given = given.as_object();
    ensure!(
        given.is_some(),
        "configProperties in {} is no object",
        path.display()
    );
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Ok(given
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.clone(), text(value)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_program_says_what_it_is() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("x.dll");
        let why = |path: &Path| App::open(path).unwrap_err().to_string();
        assert!(why(&file).contains("no program"));
        for content in [&b""[..], b"MZ", b"\x7fELF", &[b'M'; 200], &[0xff; 4096]] {
            fs::write(&file, content).unwrap();
            assert!(why(&file).contains("no .NET assembly"));
        }
    }

    #[test]
    fn every_property_is_a_text() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("x.runtimeconfig.json");
        assert_eq!(properties(&file).unwrap(), []);
        fs::write(
            &file,
            r#"{"runtimeOptions":{"configProperties":{"A":true,"B":"x","C":7}}}"#,
        )
        .unwrap();
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(
            properties(&file).unwrap(),
            [pair("A", "true"), pair("B", "x"), pair("C", "7")]
        );
        fs::write(&file, "{}").unwrap();
        assert_eq!(properties(&file).unwrap(), []);
        fs::write(&file, "{").unwrap();
        assert!(properties(&file).is_err());
    }
}
