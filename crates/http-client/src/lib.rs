//! HTTP clients for one server each: proxy, certificates, limits.
//!
//! Invariants: a request that begins by HTTPS is never redirected to plain HTTP; requests use the
//! proxy that the environment names. An [`Address`] has no user and no password.
#![forbid(unsafe_code)]

mod address;
mod client;

pub use address::{Address, without_user};
pub use client::{Settings, client};
