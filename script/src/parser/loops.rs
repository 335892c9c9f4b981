//! Loops.

use super::{Parser, drop_to};
use crate::LoadError;
use crate::code::Op;

impl<'t> Parser<'t> {
    pub(super) fn while_loop(&mut self) -> Result<(), LoadError> {
        self.advance()?;
        let start = self.current.here();
        let end = self.condition()?;
        self.expect("do")?;
        self.open_block(Some(vec![end]));
        self.block()?;
        self.expect("end")?;
        let ends = self.close_block()?;
        self.emit(Op::Jump(start as u32));
        self.land(ends);
        Ok(())
    }

    pub(super) fn repeat_loop(&mut self) -> Result<(), LoadError> {
        self.advance()?;
        let start = self.current.here();
        self.open_block(Some(Vec::new()));
        self.open_block(None);
        self.block()?;
        self.expect("until")?;
        // The condition can use the variables of the body, so both ways out of it drop them.
        let again = self.condition()?;
        self.close_block()?;
        let end = self.emit(Op::Jump(0));
        self.current.patch(again, self.current.here());
        if let Some(&drop @ (Op::Drop(_) | Op::Close(_))) = self.current.ops.get(end - 1) {
            self.emit(drop);
        }
        self.emit(Op::Jump(start as u32));
        self.land(vec![end]);
        let ends = self.close_block()?;
        self.land(ends);
        Ok(())
    }

    pub(super) fn for_loop(&mut self) -> Result<(), LoadError> {
        let line = self.line;
        self.advance()?;
        let name = self.name()?;
        self.open_block(Some(Vec::new()));
        match self.is("=") {
            true => self.numeric_loop(name, line)?,
            false => self.generic_loop(name, line)?,
        }
        let ends = self.close_block()?;
        self.land(ends);
        Ok(())
    }

    fn numeric_loop(&mut self, name: &'t [u8], line: u32) -> Result<(), LoadError> {
        let at = self.current.depth;
        self.expect("=")?;
        self.expression()?;
        self.expect(",")?;
        self.expression()?;
        match self.skip(",")? {
            true => drop(self.expression()?),
            false => self.step_of_one()?,
        }
        let prepare = self.emit_at(line, Op::ForPrepare { at, step: 0 });
        let body = self.current.here() as u32;
        self.body(&[name])?;
        self.current.patch(prepare, self.current.here());
        self.emit_at(line, Op::ForStep { at, body });
        Ok(())
    }

    fn step_of_one(&mut self) -> Result<(), LoadError> {
        let one = self.constants.number(1.0);
        self.push(Op::Constant(one), 1).map(drop)
    }

    fn generic_loop(&mut self, name: &'t [u8], line: u32) -> Result<(), LoadError> {
        let at = self.current.depth;
        let mut names = vec![name];
        while self.skip(",")? {
            names.push(self.name()?);
        }
        self.expect("in")?;
        let (count, last) = self.expressions()?;
        self.adjust(count, last, 3)?;
        let enter = self.emit_at(line, Op::Jump(0));
        let body = self.current.here() as u32;
        self.body(&names)?;
        self.current.patch(enter, self.current.here());
        self.emit_at(line, Op::ForCall(at));
        self.emit_at(line, Op::Call { at: at + 3, wanted: names.len() as u16 });
        self.emit_at(line, Op::ForTest { at, body });
        Ok(())
    }

    /// Compiles the body of a loop. Its variables are already on the stack.
    fn body(&mut self, names: &[&'t [u8]]) -> Result<(), LoadError> {
        self.expect("do")?;
        self.open_block(None);
        for name in names {
            self.declare(name, self.current.depth)?;
            self.current.depth += 1;
        }
        self.block()?;
        self.expect("end")?;
        self.close_block().map(drop)
    }

    pub(super) fn break_loop(&mut self) -> Result<(), LoadError> {
        self.advance()?;
        let blocks = &self.current.blocks;
        let Some(index) = blocks.iter().rposition(|block| block.breaks.is_some()) else {
            return Err(self.error("no loop to break"));
        };
        let (depth, is_captured) =
            (blocks[index].depth, blocks[index..].iter().any(|block| block.is_captured));
        if self.current.depth > depth {
            self.emit(drop_to(depth, is_captured));
        }
        let jump = self.emit(Op::Jump(0));
        self.current.blocks[index].breaks.get_or_insert_default().push(jump);
        Ok(())
    }
}
