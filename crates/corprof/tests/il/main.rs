//! Tests of `corprof::il`: all method bodies of real assemblies, each form, and random bytes.
//!
//! `corpus` reads, writes and wraps every method body of the frameworks, of ASP.NET Core and of a
//! large program. `forms`, `signatures` and `wraps` test each form by itself. `properties`
//! generates bodies that no compiler makes.

mod corpus;
mod forms;
mod image;
mod properties;
#[path = "../../../agent/src/base/metadata/schema.rs"]
#[expect(dead_code, reason = "the agent's reader knows more tables")]
mod schema;
mod signatures;
mod wraps;
