//! Functions.

use std::mem;

use super::Parser;
use super::scope::{self, Scope};
use crate::LoadError;
use crate::code::Op;

impl<'t> Parser<'t> {
    pub(super) fn local_function(&mut self) -> Result<(), LoadError> {
        let name = self.name()?;
        self.declare(name, self.current.depth)?;
        self.function(false)
    }

    /// Compiles `function a.b:c() … end`.
    pub(super) fn named_function(&mut self) -> Result<(), LoadError> {
        self.advance()?;
        let start = self.current.depth;
        let name = self.name()?;
        let mut target = self.named(name)?;
        let mut is_method = false;
        while !is_method && (self.is(".") || self.is(":")) {
            is_method = self.is(":");
            self.advance()?;
            let field = self.name()?;
            target = self.field(target, field)?;
        }
        let place = self.place(target)?;
        self.function(is_method)?;
        self.store(&place);
        self.drop_from(start);
        Ok(())
    }

    /// Compiles the parameters and the body of a function, and pushes a closure of it.
    pub(super) fn function(&mut self, is_method: bool) -> Result<(), LoadError> {
        self.enter()?;
        self.outer.push(mem::take(&mut self.current));
        self.open_block(None);
        if is_method {
            self.parameter(b"self")?;
        }
        self.parameters()?;
        self.block()?;
        self.expect("end")?;
        self.emit(Op::Return(self.current.depth));
        self.close_block()?;
        let outer: Scope<'t> = self.outer.pop().unwrap_or_default();
        let function = mem::replace(&mut self.current, outer).finish();
        self.functions.push(function);
        self.depth -= 1;
        self.push(Op::Function((self.functions.len() - 1) as u32), 1).map(drop)
    }

    fn parameters(&mut self) -> Result<(), LoadError> {
        self.expect("(")?;
        if self.skip(")")? {
            return Ok(());
        }
        loop {
            if self.skip("...")? {
                self.current.has_varargs = true;
                self.declare(b"arg", scope::NOWHERE)?;
                break;
            }
            let name = self.name()?;
            self.parameter(name)?;
            if !self.skip(",")? {
                break;
            }
        }
        self.expect(")")
    }

    fn parameter(&mut self, name: &'t [u8]) -> Result<(), LoadError> {
        self.declare(name, self.current.depth)?;
        self.current.depth += 1;
        self.current.parameters += 1;
        Ok(())
    }
}
