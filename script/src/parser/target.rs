//! Names, and the fields, keys and calls after them.

use super::Parser;
use super::scope::NOWHERE;
use crate::LoadError;
use crate::code::Op;
use crate::lexer::{Token, shown};
use crate::names::{self, Builtin, Library, Meaning};

/// An expression that can be read or called. Some can be assigned to.
pub(super) enum Target<'t> {
    Local(u16),
    Captured(u16),
    Global(&'t [u8]),
    Library(Library),
    /// A table and a key are on the stack.
    Indexed,
    /// A value is on the stack.
    Value,
    /// The result of the call at this step is on the stack.
    Call(usize),
}

impl<'t> Parser<'t> {
    /// Compiles a name or parentheses, with the fields, keys and calls after it. [`Self::load`] pushes the value.
    pub(super) fn suffixed(&mut self) -> Result<Target<'t>, LoadError> {
        let mut target = match self.token {
            Token::Name(name) => {
                self.advance()?;
                self.named(name)?
            }
            Token::Sign("(") => {
                self.advance()?;
                self.expression()?;
                self.expect(")")?;
                Target::Value
            }
            _ => return Err(self.unexpected("an expression")),
        };
        loop {
            target = match self.token {
                Token::Sign(".") => {
                    self.advance()?;
                    let name = self.name()?;
                    self.field(target, name)?
                }
                Token::Sign("[") => {
                    self.load(target)?;
                    self.advance()?;
                    self.expression()?;
                    self.expect("]")?;
                    Target::Indexed
                }
                Token::Sign(":") => {
                    self.load(target)?;
                    self.advance()?;
                    self.method()?
                }
                Token::Sign("(" | "{") | Token::String(_) => {
                    self.load(target)?;
                    let at = self.current.depth - 1;
                    self.call(at)?
                }
                _ => return Ok(target),
            };
        }
    }

    /// The target that a name means.
    pub(super) fn named(&mut self, name: &'t [u8]) -> Result<Target<'t>, LoadError> {
        if let Some(variable) = self.variable(name) {
            return match variable.level == self.outer.len() {
                _ if variable.slot == NOWHERE => Err(self.missing("arg in a function with '...'")),
                true => Ok(Target::Local(variable.slot)),
                false => self.capture(variable).map(Target::Captured),
            };
        }
        match names::global(name) {
            Some(Meaning::Missing) => Err(self.missing(&shown(name))),
            Some(Meaning::Library(library)) => Ok(Target::Library(library)),
            _ => Ok(Target::Global(name)),
        }
    }

    pub(super) fn field(&mut self, target: Target<'t>, name: &'t [u8]) -> Result<Target<'t>, LoadError> {
        if let Target::Library(library) = target {
            match library.field(name) {
                Some(Meaning::Missing) => {
                    return Err(self.missing(&format!("{}.{}", library.name(), shown(name))));
                }
                Some(meaning) => return self.meaning(meaning).map(|()| Target::Value),
                None => {}
            }
        }
        self.load(target)?;
        self.string(name.into())?;
        Ok(Target::Indexed)
    }

    fn missing(&self, name: &str) -> LoadError {
        LoadError::new(self.last_line, format!("{name} is not supported here"))
    }

    fn method(&mut self) -> Result<Target<'t>, LoadError> {
        let name = self.name()?;
        if Library::String.field(name) == Some(Meaning::Missing) {
            return Err(self.missing(&format!("the method {}", shown(name))));
        }
        let id = self.constants.string(name.into());
        self.push(Op::Method(id), 1)?;
        let at = self.current.depth - 2;
        self.call(at)
    }

    /// Compiles the arguments of a call of the function at `at`.
    fn call(&mut self, at: u16) -> Result<Target<'t>, LoadError> {
        let line = self.line;
        let is_of_commands =
            matches!(self.current.ops.last(), Some(Op::Builtin(Builtin::RedisCall | Builtin::RedisPcall)));
        match &mut self.token {
            Token::String(string) => {
                let string = std::mem::take(string);
                if is_of_commands {
                    self.check(&string)?;
                }
                self.advance()?;
                self.string(string)?;
            }
            Token::Sign("{") => self.table()?,
            Token::Sign("(") if self.line != self.last_line => {
                return Err(self.error("ambiguous syntax (function call x new statement)"));
            }
            _ => {
                self.expect("(")?;
                if is_of_commands
                    && let Token::String(name) = &self.token
                    && let name = name.clone()
                    && matches!(self.peek()?, Token::Sign("," | ")"))
                {
                    self.check(&name)?;
                }
                if !self.is(")") {
                    let (_, last) = self.expressions()?;
                    self.open(last);
                }
                self.expect(")")?;
            }
        }
        self.current.depth = at + 1;
        Ok(Target::Call(self.emit_at(line, Op::Call { at, wanted: 1 })))
    }

    /// Checks that a command can be called.
    fn check(&self, name: &[u8]) -> Result<(), LoadError> {
        (self.check)(name)
            .map_err(|reason| LoadError { command: Some(name.to_vec()), ..LoadError::new(self.line, reason) })
    }

    /// Pushes the value of a target.
    pub(super) fn load(&mut self, target: Target<'t>) -> Result<(), LoadError> {
        let op = match target {
            Target::Value | Target::Call(_) => return Ok(()),
            Target::Indexed => {
                self.current.depth -= 1;
                self.emit(Op::Index);
                return Ok(());
            }
            Target::Local(slot) => Op::Local(slot),
            Target::Captured(index) => Op::Captured(index),
            Target::Library(library) => Op::Library(library),
            Target::Global(name) => match names::global(name) {
                Some(meaning) => return self.meaning(meaning),
                None => Op::NoGlobal(self.constants.string(name.into())),
            },
        };
        self.push(op, 1).map(drop)
    }

    fn meaning(&mut self, meaning: Meaning) -> Result<(), LoadError> {
        let op = match meaning {
            Meaning::Builtin(builtin) => Op::Builtin(builtin),
            Meaning::Library(library) => Op::Library(library),
            Meaning::Number(number) => return self.number(number),
            Meaning::Keys => Op::Keys,
            Meaning::Arguments => Op::Arguments,
            Meaning::Missing => return Err(self.missing("a name")),
        };
        self.push(op, 1).map(drop)
    }
}
