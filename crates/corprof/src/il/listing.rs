//! Text form of a method body, one instruction per line, for messages and tests.

use core::fmt;

use super::{Body, Handler, Instruction, Label, Line, Operand};

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::END => f.write_str("end"),
            Self(number) => write!(f, "L{number}"),
        }
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.opcode())?;
        match self.operand() {
            Operand::None => Ok(()),
            Operand::Int8(value) => write!(f, " {value}"),
            Operand::UInt8(value) => write!(f, " {value}"),
            Operand::Int32(value) => write!(f, " {value}"),
            Operand::Int64(value) => write!(f, " {value:#x}"),
            Operand::Float32(bits) => write!(f, " {}", f32::from_bits(*bits)),
            Operand::Float64(bits) => write!(f, " {}", f64::from_bits(*bits)),
            Operand::Variable(number) => write!(f, " {number}"),
            Operand::Token(token) => write!(f, " {token:?}"),
            Operand::Target(target) => write!(f, " {target}"),
            Operand::Switch(targets) => {
                let targets: Vec<_> = targets.iter().map(Label::to_string).collect();
                write!(f, " ({})", targets.join(", "))
            }
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.label, self.instruction)
    }
}

impl fmt::Display for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "maxstack {}", self.max_stack)?;
        if let Some(locals) = self.locals {
            write!(f, ", locals {locals:?}")?;
        }
        if self.init_locals {
            write!(f, ", init")?;
        }
        writeln!(f)?;
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        for clause in &self.clauses {
            write!(f, "try {} to {} ", clause.try_start, clause.try_end)?;
            match clause.handler {
                Handler::Catch(class) => write!(f, "catch {class:?}")?,
                Handler::Filter(start) => write!(f, "filter {start}")?,
                Handler::Finally => write!(f, "finally")?,
                Handler::Fault => write!(f, "fault")?,
            }
            writeln!(f, " {} to {}", clause.handler_start, clause.handler_end)?;
        }
        Ok(())
    }
}
