//! Every method body of the frameworks that tests run on, of ASP.NET Core and of a large program:
//! read, written, wrapped, and read again; each form of them by itself; and what no compiler makes.

mod corpus;
mod forms;
mod image;
mod properties;
#[path = "../../../agent/src/base/metadata/schema.rs"]
#[expect(dead_code, reason = "the agent's reader knows more tables")]
mod schema;
mod signatures;
mod wraps;
