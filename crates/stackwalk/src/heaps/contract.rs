//! Reader of the data contract: a runtime's description of its own structures, for debuggers.
//!
//! A symbol of the runtime (`DotNetRuntimeContractDescriptor`, since .NET 9) leads to a text in
//! JSON with the offsets of fields, and to an array of addresses to which the text refers by index.
//! Source: dotnet/runtime `docs/design/datacontracts` (`contract-descriptor.md`,
//! `data_descriptor.md`). The meaning of the fields is known in [`super`]. Invariant: for any
//! memory content, a contract is read completely or rejected.

use crate::own_memory::peek;

/// Name of the descriptor's symbol.
pub const SYMBOL: &std::ffi::CStr = c"DotNetRuntimeContractDescriptor";

/// First word of a descriptor, in the byte order of this machine: `DNCCDAC`.
const MAGIC: u64 = 0x0043_4144_4343_4e44;
/// Maximum length of the text, and number of addresses, that is accepted.
const MAX_TEXT: usize = 1 << 20;
const MAX_POINTERS: usize = 4096;
/// Maximum nesting of values.
const MAX_DEPTH: u32 = 8;

/// Why a contract cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContractError {
    /// The memory is not readable, or not all of it.
    Unreadable,
    /// It is not a descriptor, or another machine's.
    NoDescriptor,
    /// The text is malformed.
    BadText,
    /// It does not contain this item, or in another version.
    Missing(&'static str),
}

/// A runtime's contract.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Contract {
    text: JsonValue,
    pointers: Vec<u64>,
}

impl Contract {
    /// Reads the contract from the descriptor at an address.
    pub(super) fn at(descriptor: u64) -> Result<Contract, ContractError> {
        Contract::by(peek, descriptor)
    }

    fn by(
        peek: impl Fn(u64, &mut [u8]) -> &[u8],
        descriptor: u64,
    ) -> Result<Contract, ContractError> {
        let mut buffer = [0; 40];
        let (words, _) = peek(descriptor, &mut buffer).as_chunks::<8>();
        let words: &[[u8; 8]; 5] = words.try_into().map_err(|_| ContractError::Unreadable)?;
        let [magic, sizes, text, count, pointers] = words.map(u64::from_le_bytes);
        let (flags, length) = (sizes as u32, (sizes >> 32) as usize);
        let count = (count as u32) as usize;
        // Bit 1 says that pointers have 32 bits.
        if magic != MAGIC || flags & 2 != 0 || length > MAX_TEXT || count > MAX_POINTERS {
            return Err(ContractError::NoDescriptor);
        }
        let whole = |at, length| {
            let mut buffer = vec![0; length];
            let read = peek(at, &mut buffer).len() == length;
            read.then_some(buffer).ok_or(ContractError::Unreadable)
        };
        let text = whole(text, length)?;
        let pointers = whole(pointers, count * 8)?;
        let (pointers, _) = pointers.as_chunks::<8>();
        Ok(Contract {
            text: parse(&text).ok_or(ContractError::BadText)?,
            pointers: pointers.iter().map(|at| u64::from_le_bytes(*at)).collect(),
        })
    }

    /// Returns the version of the descriptor, and the version of a named contract: a number in
    /// descriptors of version 0, a name in those of version 2.
    pub(super) fn version(&self, name: &'static str) -> Result<(u64, String), ContractError> {
        let of_text = self.text.get("version").and_then(JsonValue::number);
        let found = self.text.get("contracts").and_then(|all| all.get(name));
        let version = match found {
            Some(JsonValue::Number(number)) => Some(number.to_string()),
            Some(JsonValue::Text(name)) => Some(name.clone()),
            _ => None,
        };
        of_text.zip(version).ok_or(ContractError::Missing(name))
    }

    /// Returns the offset of a structure's field, bytes.
    pub(super) fn offset(
        &self,
        structure: &'static str,
        field: &'static str,
    ) -> Result<u64, ContractError> {
        let all = self.text.get("types").and_then(|all| all.get(structure));
        let found = all.and_then(|all| all.get(field));
        // The offset is alone, or before the name of the type.
        let offset = found.and_then(|found| found.first().number());
        offset.ok_or(ContractError::Missing(field))
    }

    /// Returns the value of a global as an address. The text has its index in the array of
    /// addresses.
    pub(super) fn pointer(&self, name: &'static str) -> Result<u64, ContractError> {
        let found = self.global(name).map(JsonValue::first);
        let index = found.and_then(|index| index.number());
        let index = index.and_then(|index| usize::try_from(index).ok());
        let pointer = index.and_then(|index| self.pointers.get(index));
        pointer.copied().ok_or(ContractError::Missing(name))
    }

    /// Returns the value of a global as a number. The text has hexadecimal digits.
    pub(super) fn number(&self, name: &'static str) -> Result<u64, ContractError> {
        let text = match self.global(name) {
            Some(JsonValue::Text(text)) => text.strip_prefix("0x"),
            _ => None,
        };
        let number = text.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        number.ok_or(ContractError::Missing(name))
    }

    /// Returns a global's value, which is alone or before the name of its type.
    fn global(&self, name: &str) -> Option<&JsonValue> {
        let found = self.text.get("globals")?.get(name)?;
        Some(found.first())
    }
}

/// A JSON value of the text.
#[derive(Clone, PartialEq, Eq, Debug)]
enum JsonValue {
    Number(u64),
    Text(String),
    List(Vec<JsonValue>),
    Object(Vec<(String, JsonValue)>),
}

impl JsonValue {
    fn get(&self, name: &str) -> Option<&JsonValue> {
        match self {
            JsonValue::Object(all) => all.iter().find(|(key, _)| key == name).map(|(_, of)| of),
            _ => None,
        }
    }

    fn number(&self) -> Option<u64> {
        match self {
            JsonValue::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns the first element of a list, or the value itself.
    fn first(&self) -> &JsonValue {
        match self {
            JsonValue::List(all) => all.first().unwrap_or(self),
            _ => self,
        }
    }
}

/// Parses a value, in the part of JSON that contracts use: no escapes, no fractions, no signs.
fn parse(text: &[u8]) -> Option<JsonValue> {
    let mut reader = TextReader { rest: text };
    let value = reader.value(0)?;
    reader.skip_space();
    reader.rest.is_empty().then_some(value)
}

struct TextReader<'a> {
    rest: &'a [u8],
}

impl TextReader<'_> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_ascii_start();
    }

    /// Consumes this byte if it comes next.
    fn has(&mut self, wanted: u8) -> bool {
        self.skip_space();
        let rest = self.rest.strip_prefix(&[wanted]);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Consumes the bytes that satisfy `of`.
    fn run(&mut self, of: impl Fn(u8) -> bool) -> &[u8] {
        let end = self.rest.iter().position(|byte| !of(*byte));
        let (run, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        run
    }

    fn value(&mut self, depth: u32) -> Option<JsonValue> {
        if depth > MAX_DEPTH {
            return None;
        }
        if self.has(b'{') {
            let field = |reader: &mut Self| {
                let name = reader.text()?;
                reader.has(b':').then_some(())?;
                Some((name, reader.value(depth + 1)?))
            };
            return self.series(b'}', field).map(JsonValue::Object);
        }
        if self.has(b'[') {
            let value = |reader: &mut Self| reader.value(depth + 1);
            return self.series(b']', value).map(JsonValue::List);
        }
        if self.rest.first() == Some(&b'"') {
            return self.text().map(JsonValue::Text);
        }
        let digits = std::str::from_utf8(self.run(|byte| byte.is_ascii_digit())).ok()?;
        digits.parse().ok().map(JsonValue::Number)
    }

    fn series<T>(&mut self, end: u8, one: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut all = Vec::new();
        if self.has(end) {
            return Some(all);
        }
        loop {
            all.push(one(self)?);
            if self.has(end) {
                return Some(all);
            }
            self.has(b',').then_some(())?;
        }
    }

    fn text(&mut self) -> Option<String> {
        self.has(b'"').then_some(())?;
        let run = self.run(|byte| byte != b'"' && byte != b'\\').to_vec();
        self.has(b'"').then_some(())?;
        String::from_utf8(run).ok()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Text and pointers, in a runtime's layout.
    pub(crate) struct Laid {
        text: Vec<u8>,
        pointers: Vec<u64>,
        descriptor: [u64; 5],
    }

    impl Laid {
        pub(crate) fn of(text: &str, pointers: &[u64]) -> Box<Laid> {
            let (text, pointers) = (text.as_bytes().to_vec(), pointers.to_vec());
            let sizes = (text.len() as u64) << 32 | 1;
            let at = (text.as_ptr() as u64, pointers.as_ptr() as u64);
            let descriptor = [MAGIC, sizes, at.0, pointers.len() as u64, at.1];
            Box::new(Laid {
                text,
                pointers,
                descriptor,
            })
        }

        pub(crate) fn at(&self) -> u64 {
            assert_eq!(self.descriptor[2], self.text.as_ptr() as u64);
            assert_eq!(self.descriptor[4], self.pointers.as_ptr() as u64);
            self.descriptor.as_ptr() as u64
        }
    }

    const TEXT: &str = r#"{"version":0,"baseline":"empty","types":{"A":{"!":16,"Here":8,"There":[24,"pointer"]},"B":{}},
        "globals":{"Small":["0xf","uint8"],"Bare":"0x10","Far":[[1],"pointer"],"Beyond":[[9],"pointer"]},"contracts":{"Thing":2,"Named":"c1"}}"#;

    #[test]
    fn what_a_contract_says_is_found() {
        let laid = Laid::of(TEXT, &[0x1000, 0x2000]);
        let contract = Contract::at(laid.at()).unwrap();
        assert_eq!(contract.version("Thing"), Ok((0, "2".into())));
        assert_eq!(contract.version("Named"), Ok((0, "c1".into())));
        assert_eq!(contract.offset("A", "Here"), Ok(8));
        assert_eq!(contract.offset("A", "There"), Ok(24));
        assert_eq!(contract.pointer("Far"), Ok(0x2000));
        assert_eq!(contract.number("Small"), Ok(15));
        assert_eq!(contract.number("Bare"), Ok(16));
        let missing = |name| Err(ContractError::Missing(name));
        let version = contract.version("Other");
        assert_eq!(version, Err(ContractError::Missing("Other")));
        assert_eq!(contract.offset("B", "Here"), missing("Here"));
        assert_eq!(contract.offset("C", "Here"), missing("Here"));
        assert_eq!(contract.pointer("Beyond"), missing("Beyond"));
        assert_eq!(contract.pointer("Small"), missing("Small"));
        assert_eq!(contract.number("Far"), missing("Far"));
    }

    #[test]
    fn what_is_no_contract_is_refused() {
        assert_eq!(Contract::at(8), Err(ContractError::Unreadable));
        let mut laid = Laid::of(TEXT, &[]);
        laid.descriptor[0] += 1;
        assert_eq!(Contract::at(laid.at()), Err(ContractError::NoDescriptor));
        for text in [
            "",
            "{",
            "{\"a\":1",
            "[1,]",
            "{\"a\" 1}",
            "\"a\\n\"",
            "-1",
            "1 1",
            "18446744073709551616",
            "[[[[[[[[[[1]]]]]]]]]]",
        ] {
            let laid = Laid::of(text, &[]);
            assert_eq!(
                Contract::at(laid.at()),
                Err(ContractError::BadText),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[{}\\[\\]\",:0-9a ]{0,60}") {
            let _either = parse(text.as_bytes());
        }

        #[test]
        fn a_text_that_was_cut_is_refused(length in 0..TEXT.len()) {
            prop_assert_eq!(parse(&TEXT.as_bytes()[..length]), None);
        }
    }
}
