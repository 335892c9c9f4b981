//! Compiles the text of a script in one pass.

mod constants;
mod expression;
mod function;
mod loops;
mod scope;
mod statement;
mod target;

use std::collections::HashMap;
use std::mem;

use constants::Constants;
use scope::{Block, Captured, Scope, Variable};

use super::code::{Capture, Code, Op};
use super::lexer::{Lexer, Token, shown};
use super::{Check, LoadError};

/// How deep statements and expressions may be nested.
const MAX_DEPTH: usize = 100;
/// How many local variables a function may have at once, and how many it may capture, as in Lua.
const MAX_LOCALS: usize = 200;
const MAX_CAPTURES: usize = 60;
/// How many values a function may need at once.
const MAX_SLOTS: u16 = 1_000;

/// Compiles a text of less than 4 GiB.
pub(super) fn compile(text: &[u8], check: Check) -> Result<Code, LoadError> {
    let mut parser = Parser::new(text, check)?;
    parser.current.has_varargs = true;
    parser.open_block(None);
    parser.block()?;
    if parser.token != Token::End {
        return Err(parser.unexpected("'<eof>'"));
    }
    parser.close_block()?;
    parser.emit(Op::Return(0));
    let main = mem::take(&mut parser.current).finish();
    parser.functions.push(main);
    Ok(Code {
        functions: parser.functions.into(),
        constants: parser.constants.all.into(),
        text: parser.constants.text.into(),
    })
}

/// The state of the compiler.
struct Parser<'t> {
    lexer: Lexer<'t>,
    check: Check,
    token: Token<'t>,
    /// The line of `token`, and of the word before it.
    line: u32,
    last_line: u32,
    /// The word after `token`, if it was looked at, with its line.
    ahead: Option<(Token<'t>, u32)>,
    /// How deeply this place is nested.
    depth: usize,
    /// The function that is being compiled, and those around it, the outermost first.
    current: Scope<'t>,
    outer: Vec<Scope<'t>>,
    /// The visible variables by their names, the innermost last.
    variables: HashMap<&'t [u8], Vec<Variable>>,
    functions: Vec<super::code::Function>,
    constants: Constants<'t>,
}

impl<'t> Parser<'t> {
    fn new(text: &'t [u8], check: Check) -> Result<Self, LoadError> {
        let mut parser = Self {
            lexer: Lexer::new(text),
            check,
            token: Token::End,
            line: 1,
            last_line: 1,
            ahead: None,
            depth: 0,
            current: Scope::default(),
            outer: Vec::new(),
            variables: HashMap::new(),
            functions: Vec::new(),
            constants: Constants::default(),
        };
        parser.advance()?;
        Ok(parser)
    }

    /// Goes on to the next word.
    fn advance(&mut self) -> Result<Token<'t>, LoadError> {
        let (next, line) = match self.ahead.take() {
            Some(ahead) => ahead,
            None => (self.lexer.next()?, self.lexer.line()),
        };
        self.last_line = mem::replace(&mut self.line, line);
        Ok(mem::replace(&mut self.token, next))
    }

    /// The word after the current one.
    fn peek(&mut self) -> Result<&Token<'t>, LoadError> {
        if self.ahead.is_none() {
            self.ahead = Some((self.lexer.next()?, self.lexer.line()));
        }
        Ok(self.ahead.as_ref().map_or(&Token::End, |(token, _)| token))
    }

    fn is(&self, sign: &str) -> bool {
        matches!(self.token, Token::Sign(found) if found == sign)
    }

    /// Skips the word if it is `sign`. Returns whether it was.
    fn skip(&mut self, sign: &str) -> Result<bool, LoadError> {
        let is_there = self.is(sign);
        if is_there {
            self.advance()?;
        }
        Ok(is_there)
    }

    fn expect(&mut self, sign: &str) -> Result<(), LoadError> {
        match self.skip(sign)? {
            true => Ok(()),
            false => Err(self.unexpected(&format!("'{sign}'"))),
        }
    }

    fn name(&mut self) -> Result<&'t [u8], LoadError> {
        let Token::Name(name) = self.token else { return Err(self.unexpected("<name>")) };
        self.advance()?;
        Ok(name)
    }

    fn error(&self, reason: impl Into<String>) -> LoadError {
        LoadError::new(self.line, reason)
    }

    fn unexpected(&self, expected: &str) -> LoadError {
        let found = match &self.token {
            Token::Name(name) => shown(name),
            Token::String(string) => shown(string),
            Token::Number(number) => super::number::to_string(*number),
            Token::Sign(sign) => (*sign).to_owned(),
            Token::End => "<eof>".to_owned(),
        };
        self.error(format!("{expected} expected near '{found}'"))
    }

    /// Goes one level deeper. The caller must decrease `depth` later.
    fn enter(&mut self) -> Result<(), LoadError> {
        self.depth += 1;
        match self.depth > MAX_DEPTH {
            true => Err(self.error(format!("is nested more than {MAX_DEPTH} levels deep"))),
            false => Ok(()),
        }
    }

    fn emit(&mut self, op: Op) -> usize {
        self.emit_at(self.last_line, op)
    }

    fn emit_at(&mut self, line: u32, op: Op) -> usize {
        self.current.ops.push(op);
        self.current.lines.push(u16::try_from(line).unwrap_or(u16::MAX));
        self.current.ops.len() - 1
    }

    /// Emits a step that pushes `values` values.
    fn push(&mut self, op: Op, values: u16) -> Result<usize, LoadError> {
        self.current.depth += values;
        match self.current.depth > MAX_SLOTS {
            true => Err(self.error(format!("a function needs more than {MAX_SLOTS} values at once"))),
            false => Ok(self.emit(op)),
        }
    }

    fn open_block(&mut self, breaks: Option<Vec<usize>>) {
        let Scope { depth, names, .. } = &self.current;
        let block = Block { depth: *depth, names: names.len(), is_captured: false, breaks };
        self.current.blocks.push(block);
    }

    /// Ends the innermost block, pops its values, and returns the jumps out of it.
    fn close_block(&mut self) -> Result<Vec<usize>, LoadError> {
        let Some(block) = self.current.blocks.pop() else { return Err(self.error("a block has no start")) };
        for name in self.current.names.drain(block.names..) {
            if let Some(same) = self.variables.get_mut(name) {
                same.pop();
            }
        }
        if self.current.depth > block.depth {
            self.current.depth = block.depth;
            self.emit(drop_to(block.depth, block.is_captured));
        }
        Ok(block.breaks.unwrap_or_default())
    }

    /// Names the value in a slot.
    fn declare(&mut self, name: &'t [u8], slot: u16) -> Result<(), LoadError> {
        if self.current.names.len() == MAX_LOCALS {
            return Err(self.error(format!("a function has more than {MAX_LOCALS} local variables")));
        }
        self.current.names.push(name);
        let (level, block) = (self.outer.len(), self.current.blocks.len() - 1);
        self.variables.entry(name).or_default().push(Variable { level, block, slot });
        Ok(())
    }

    fn variable(&self, name: &[u8]) -> Option<Variable> {
        self.variables.get(name)?.last().copied()
    }

    /// Captures a variable of an outer function, in all functions between that one and this. Returns its number in this function.
    fn capture(&mut self, variable: Variable) -> Result<u16, LoadError> {
        if let Some(known) = self.current.captured(variable) {
            return Ok(known);
        }
        let between = &self.outer[variable.level + 1..];
        // The functions that have captured it surround those that have not.
        let knowing = between.partition_point(|scope| scope.captured(variable).is_some());
        let known = between[..knowing].last().and_then(|scope| scope.captured(variable));
        let mut capture = known.map_or(Capture::Local(variable.slot), Capture::Captured);
        let mut level = variable.level + 1 + knowing;
        self.outer[variable.level].blocks[variable.block].is_captured = true;
        loop {
            let scope = self.outer.get_mut(level).unwrap_or(&mut self.current);
            let index = scope.captures.len();
            if index == MAX_CAPTURES {
                let reason = format!("a function uses more than {MAX_CAPTURES} variables of outer functions");
                return Err(self.error(reason));
            }
            scope.captures.push(Captured { variable, capture });
            if level == self.outer.len() {
                return Ok(index as u16);
            }
            (level, capture) = (level + 1, Capture::Captured(index as u16));
        }
    }
}

/// The step that pops all values from a slot on.
fn drop_to(depth: u16, is_captured: bool) -> Op {
    if is_captured { Op::Close(depth) } else { Op::Drop(depth) }
}
