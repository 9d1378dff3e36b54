//! Writer of JSON objects and of arrays with very many items: nothing of them is kept.

use std::io::{self, Write};

use serde::Serialize;

use crate::visible::write_json;

/// Writes the entries of an object one after the other.
pub(super) struct Object<'w, W: Write> {
    out: &'w mut W,
    has_entries: bool,
}

impl<W: Write> Object<'_, W> {
    /// Writes an object with the entries that `fill` writes.
    pub(super) fn write(
        out: &mut W,
        fill: impl FnOnce(&mut Object<'_, W>) -> io::Result<()>,
    ) -> io::Result<()> {
        out.write_all(b"{")?;
        let mut object = Object {
            out,
            has_entries: false,
        };
        fill(&mut object)?;
        object.out.write_all(b"}")
    }

    /// Writes a key, and returns the writer for its value.
    pub(super) fn key(&mut self, key: &str) -> io::Result<&mut W> {
        if self.has_entries {
            self.out.write_all(b",")?;
        }
        self.has_entries = true;
        write_json(&mut *self.out, &key)?;
        self.out.write_all(b":")?;
        Ok(self.out)
    }

    pub(super) fn entry(&mut self, key: &str, value: impl Serialize) -> io::Result<()> {
        write_json(self.key(key)?, &value)
    }

    pub(super) fn array(
        &mut self,
        key: &str,
        items: impl Iterator<Item: Serialize>,
    ) -> io::Result<()> {
        let out = self.key(key)?;
        write_array(out, items, |out, item| write_json(out, &item))
    }

    /// Writes an array of the same item so many times.
    pub(super) fn repeated(
        &mut self,
        key: &str,
        item: impl Serialize + Clone,
        times: usize,
    ) -> io::Result<()> {
        self.array(key, std::iter::repeat_n(item, times))
    }

    pub(super) fn object(
        &mut self,
        key: &str,
        fill: impl FnOnce(&mut Object<'_, W>) -> io::Result<()>,
    ) -> io::Result<()> {
        Object::write(self.key(key)?, fill)
    }
}

/// Writes an array of what `write` writes for each item.
pub(super) fn write_array<W: Write, T>(
    out: &mut W,
    items: impl Iterator<Item = T>,
    mut write: impl FnMut(&mut W, T) -> io::Result<()>,
) -> io::Result<()> {
    out.write_all(b"[")?;
    for (nth, item) in items.enumerate() {
        if nth > 0 {
            out.write_all(b",")?;
        }
        write(out, item)?;
    }
    out.write_all(b"]")
}
