//! Statements.

use super::Parser;
use super::expression::Kind;
use super::target::Target;
use crate::LoadError;
use crate::code::Op;
use crate::lexer::Token;

/// The most variables on the left of an assignment.
const MAX_TARGETS: usize = 100;

/// Where a statement writes a value.
pub(super) enum Place {
    Local(u16),
    Captured(u16),
    Global,
    /// The table is in this slot, and the key in the next.
    Indexed(u16),
}

impl<'t> Parser<'t> {
    /// Compiles the statements up to the end of the innermost block.
    pub(super) fn block(&mut self) -> Result<(), LoadError> {
        while !matches!(self.token, Token::End | Token::Sign("else" | "elseif" | "end" | "until")) {
            self.enter()?;
            let is_last = self.statement()?;
            self.depth -= 1;
            self.skip(";")?;
            if is_last {
                break;
            }
        }
        Ok(())
    }

    /// Compiles a block with variables of its own.
    fn inner_block(&mut self) -> Result<(), LoadError> {
        self.open_block(None);
        self.block()?;
        self.close_block().map(drop)
    }

    /// Compiles a statement. Returns whether it must be the last one of its block.
    fn statement(&mut self) -> Result<bool, LoadError> {
        let Token::Sign(sign) = self.token else { return self.assignment_or_call().map(|()| false) };
        match sign {
            "if" => self.conditional()?,
            "while" => self.while_loop()?,
            "do" => {
                self.advance()?;
                self.inner_block()?;
                self.expect("end")?;
            }
            "for" => self.for_loop()?,
            "repeat" => self.repeat_loop()?,
            "function" => self.named_function()?,
            "local" => {
                self.advance()?;
                match self.skip("function")? {
                    true => self.local_function()?,
                    false => self.local()?,
                }
            }
            "return" => return self.result().map(|()| true),
            "break" => return self.break_loop().map(|()| true),
            _ => self.assignment_or_call()?,
        }
        Ok(false)
    }

    /// Compiles a condition. Returns the jump for when it is false.
    pub(super) fn condition(&mut self) -> Result<usize, LoadError> {
        self.expression()?;
        self.current.depth -= 1;
        Ok(self.emit(Op::JumpIfNot(0)))
    }

    fn conditional(&mut self) -> Result<(), LoadError> {
        let mut ends = Vec::new();
        loop {
            self.advance()?;
            let otherwise = self.condition()?;
            self.expect("then")?;
            self.inner_block()?;
            if self.is("elseif") || self.is("else") {
                ends.push(self.emit(Op::Jump(0)));
            }
            self.current.patch(otherwise, self.current.here());
            if !self.is("elseif") {
                break;
            }
        }
        if self.skip("else")? {
            self.inner_block()?;
        }
        self.expect("end")?;
        self.land(ends);
        Ok(())
    }

    /// Makes jumps lead here.
    pub(super) fn land(&mut self, jumps: Vec<usize>) {
        for jump in jumps {
            self.current.patch(jump, self.current.here());
        }
    }

    fn result(&mut self) -> Result<(), LoadError> {
        self.advance()?;
        let at = self.current.depth;
        if !matches!(self.token, Token::End | Token::Sign("else" | "elseif" | "end" | "until" | ";")) {
            let (_, last) = self.expressions()?;
            self.open(last);
        }
        self.emit(Op::Return(at));
        self.current.depth = at;
        Ok(())
    }

    fn local(&mut self) -> Result<(), LoadError> {
        let slot = self.current.depth;
        let mut names = vec![self.name()?];
        while self.skip(",")? {
            names.push(self.name()?);
        }
        let wanted = names.len() as u16;
        match self.skip("=")? {
            true => {
                let (count, last) = self.expressions()?;
                self.adjust(count, last, wanted)?;
            }
            false => drop(self.push(Op::Nil(wanted), wanted)?),
        }
        names.into_iter().zip(slot..).try_for_each(|(name, slot)| self.declare(name, slot))
    }

    fn assignment_or_call(&mut self) -> Result<(), LoadError> {
        let start = self.current.depth;
        let target = self.suffixed()?;
        if let Target::Call(call) = target {
            self.current.want(call, 0);
            return Ok(());
        }
        let mut places = vec![self.place(target)?];
        while self.skip(",")? {
            let target = self.suffixed()?;
            places.push(self.place(target)?);
            if places.len() > MAX_TARGETS {
                return Err(self.error(format!("more than {MAX_TARGETS} variables are assigned at once")));
            }
        }
        self.expect("=")?;
        let (count, last) = self.expressions()?;
        self.adjust(count, last, places.len() as u16)?;
        places.iter().rev().for_each(|place| self.store(place));
        self.drop_from(start);
        Ok(())
    }

    pub(super) fn place(&self, target: Target<'t>) -> Result<Place, LoadError> {
        match target {
            Target::Local(slot) => Ok(Place::Local(slot)),
            Target::Captured(index) => Ok(Place::Captured(index)),
            Target::Global(_) | Target::Library(_) => Ok(Place::Global),
            Target::Indexed => Ok(Place::Indexed(self.current.depth - 2)),
            Target::Value | Target::Call(_) => {
                Err(self.unexpected("a call, or something that can be assigned to,"))
            }
        }
    }

    /// Pops a value, and writes it to the place.
    pub(super) fn store(&mut self, place: &Place) {
        self.emit(match place {
            Place::Local(slot) => Op::SetLocal(*slot),
            Place::Captured(index) => Op::SetCaptured(*index),
            Place::Global => Op::SetGlobal,
            Place::Indexed(slot) => Op::SetIndex(*slot),
        });
        self.current.depth -= 1;
    }

    pub(super) fn drop_from(&mut self, depth: u16) {
        if self.current.depth > depth {
            self.current.depth = depth;
            self.emit(Op::Drop(depth));
        }
    }

    /// Makes `count` expressions give `wanted` values.
    pub(super) fn adjust(&mut self, count: u16, last: Kind, wanted: u16) -> Result<(), LoadError> {
        let before = self.current.depth - count;
        match last {
            Kind::Many(call) => self.current.want(call, (wanted + 1).saturating_sub(count)),
            Kind::One if wanted > count => drop(self.push(Op::Nil(wanted - count), wanted - count)?),
            Kind::One => {}
        }
        self.drop_from(before + wanted);
        Ok(())
    }
}
