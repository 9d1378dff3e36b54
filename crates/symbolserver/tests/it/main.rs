//! Files from a server that speaks both protocols, and from servers that do what they should not.

mod common;
mod hostile;
mod interrupted;
mod proxies;
mod served;
