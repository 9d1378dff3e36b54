//! Clients, and the proxy and certificates that they use.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Proxy};

use crate::address::{Address, without_user};

/// Settings of a client.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Maximum time until a connection is made, until an answer begins, and between two parts of
    /// it.
    pub silence: Duration,
    /// How often the server may redirect a request. 0: the redirection is the answer.
    pub redirects: u32,
}

/// Returns a client for `server`, with the proxy that the environment names.
///
/// # Errors
/// The environment's proxy is none; the text says what to do.
pub fn client(
    server: &Address,
    settings: Settings,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Agent, String> {
    let silence = Some(settings.silence);
    let mut config = Agent::config_builder()
        .user_agent(concat!("sidewalk/", env!("CARGO_PKG_VERSION")))
        .accept_encoding("identity")
        .http_status_as_error(false)
        .https_only(server.is_secure())
        .max_redirects(settings.redirects)
        .timeout_resolve(silence)
        .timeout_connect(silence)
        .timeout_recv_response(silence)
        .timeout_per_read(silence)
        .timeout_per_write(silence)
        .proxy(proxy(server, variable)?);
    if server.is_secure() {
        let tls = TlsConfig::builder().root_certs(certificates());
        config = config.tls_config(tls.build());
    }
    Ok(config.build().into())
}

/// The machine's certificates (or those of `SSL_CERT_FILE`): a company's proxy has its own. In a
/// container without any, those that Mozilla trusts, which are in the binary.
fn certificates() -> RootCerts {
    let found = rustls_native_certs::load_native_certs().certs;
    if found.is_empty() {
        return RootCerts::WebPki;
    }
    let found = found
        .iter()
        .map(|one| Certificate::from_der(one).to_owned());
    RootCerts::Specific(Arc::new(found.collect()))
}

/// The proxy for a server, as other tools find it: by the scheme of the address, else for all,
/// unless the host is named in `no_proxy`.
fn proxy(
    server: &Address,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Option<Proxy>, String> {
    let value = |name: &str| {
        let found = variable(&name.to_lowercase()).or_else(|| variable(name))?;
        let found = found.into_string().ok()?;
        (!found.is_empty()).then_some(found)
    };
    let of_scheme = if server.is_secure() {
        "HTTPS_PROXY"
    } else {
        "HTTP_PROXY"
    };
    let found = [of_scheme, "ALL_PROXY"]
        .into_iter()
        .find_map(|name| Some((name, value(name)?)));
    let Some((name, address)) = found else {
        return Ok(None);
    };
    if value("NO_PROXY").is_some_and(|list| is_excepted(server.host(), &list)) {
        return Ok(None);
    }
    Proxy::new(&address).map(Some).map_err(|_| {
        format!(
            "{name} is {}, which is no proxy: give it as http://HOST:PORT or socks5://HOST:PORT",
            without_user(&address)
        )
    })
}

/// Whether a list such as `localhost,.example.org` has this host.
fn is_excepted(host: &str, list: &str) -> bool {
    let host = host.to_lowercase();
    list.split([',', ' ']).any(|entry| {
        let entry = entry.trim().to_lowercase();
        let entry = entry.trim_start_matches('*').trim_start_matches('.');
        // A star alone is everything.
        if entry.is_empty() {
            return list.trim() == "*";
        }
        host == entry
            || host
                .strip_suffix(entry)
                .is_some_and(|rest| rest.ends_with('.'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy_for(address: &str, set: &[(&str, &str)]) -> Result<Option<String>, String> {
        let server = Address::parse(address).unwrap();
        let variable = |name: &str| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        Ok(proxy(&server, &variable)?.map(|proxy| proxy.host().to_owned()))
    }

    #[test]
    fn proxies_are_found_as_other_tools_find_them() {
        let (secure, plain) = ("https://a.example/x", "http://a.example");
        let both = [("https_proxy", "http://s:1"), ("HTTP_PROXY", "p:2")];
        let found = |host: &str| Ok(Some(host.to_owned()));
        assert_eq!(proxy_for(secure, &both), found("s"));
        assert_eq!(proxy_for(plain, &both), found("p"));
        assert_eq!(proxy_for(plain, &[("ALL_PROXY", "socks5://q")]), found("q"));
        assert_eq!(proxy_for(plain, &[("HTTPS_PROXY", "s:1")]), Ok(None));
        assert_eq!(proxy_for(plain, &[("HTTP_PROXY", "")]), Ok(None));
        for (list, is_excepted) in [
            ("localhost,a.example", true),
            (".example", true),
            ("*.example", true),
            ("*", true),
            ("A.Example", true),
            ("b.example", false),
            ("ample", false),
            ("", false),
            (",", false),
        ] {
            let set = [("HTTP_PROXY", "p:2"), ("NO_PROXY", list)];
            let expected = if is_excepted { Ok(None) } else { found("p") };
            assert_eq!(proxy_for(plain, &set), expected, "{list}");
        }
    }

    #[test]
    fn a_proxy_that_is_none_is_told_without_its_password() {
        let error = proxy_for("http://x", &[("HTTP_PROXY", "quic://me:secret@y")]).unwrap_err();
        assert!(
            error.starts_with("HTTP_PROXY is quic://y, which is no proxy"),
            "{error}"
        );
    }
}
