//! Addresses of servers.

/// The address of a server, or of a path on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address(String);

impl Address {
    /// Parses an address that begins with `https://` or `http://`.
    ///
    /// # Errors
    /// It is no address, or has a user name; the text says why.
    pub fn parse(address: &str) -> Result<Address, String> {
        let rest = address
            .strip_prefix("https://")
            .or_else(|| address.strip_prefix("http://"))
            .ok_or("it does not begin with https:// or http://")?;
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if host.is_empty() {
            return Err("it has no host".into());
        }
        if host.contains('@') {
            return Err("it has a user name or a password in it".into());
        }
        if !address.bytes().all(|byte| byte.is_ascii_graphic()) || address.contains('#') {
            return Err("it is not the address of a server".into());
        }
        Ok(Address(address.to_owned()))
    }

    /// Returns it as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether requests are enciphered.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.0.starts_with("https://")
    }

    /// Returns the host's name, without a port.
    #[must_use]
    pub fn host(&self) -> &str {
        let rest = self.0.split("//").nth(1).unwrap_or_default();
        let host = rest.split(['/', '?']).next().unwrap_or_default();
        match host.strip_prefix('[') {
            Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
            None => host.split(':').next().unwrap_or_default(),
        }
    }
}

/// Returns an address without the user and password that may be in it.
#[must_use]
pub fn without_user(address: &str) -> String {
    let (scheme, rest) = match address.split_once("//") {
        Some((scheme, rest)) => (format!("{scheme}//"), rest),
        None => (String::new(), address),
    };
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    format!("{scheme}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for (address, host) in [
            ("https://a.example", "a.example"),
            ("http://a.example:1/x@y", "a.example"),
            ("http://[::1]:80/x", "::1"),
            ("http://a?b=c", "a"),
        ] {
            assert_eq!(Address::parse(address).unwrap().host(), host);
        }
        for wrong in [
            "a",
            "ftp://a",
            "http://",
            "http://u:p@a",
            "http://a b",
            "http://a#b",
        ] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
