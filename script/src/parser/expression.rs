//! Expressions.

use std::borrow::Cow;

use super::Parser;
use super::target::Target;
use crate::LoadError;
use crate::code::{ALL, Arithmetic, Comparison, Op};
use crate::lexer::Token;

/// How strongly an operator without a left operand binds.
const UNARY: u8 = 8;
/// How strongly `..` binds to its right operand: it does not take another `..`.
const JOINED: u8 = 5;

/// What an expression left on the stack.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    One,
    /// One value, but the call or `...` at this step can give more.
    Many(usize),
}

enum Operator {
    And,
    Or,
    Join,
    Arithmetic(Arithmetic),
    Compare(Comparison),
}

impl<'t> Parser<'t> {
    /// Compiles an expression, which pushes one value.
    pub(super) fn expression(&mut self) -> Result<Kind, LoadError> {
        self.operation(0)
    }

    /// Compiles expressions with commas between them. Returns their number, and what the last one left on the stack.
    pub(super) fn expressions(&mut self) -> Result<(u16, Kind), LoadError> {
        let mut count = 1;
        let mut last = self.expression()?;
        while self.skip(",")? {
            last = self.expression()?;
            count += 1;
        }
        Ok((count, last))
    }

    /// Makes the last of several expressions give all its values.
    pub(super) fn open(&mut self, last: Kind) {
        if let Kind::Many(call) = last {
            self.current.want(call, ALL);
        }
    }

    /// Compiles an expression whose operators bind more strongly than `limit`.
    fn operation(&mut self, limit: u8) -> Result<Kind, LoadError> {
        self.enter()?;
        let line = self.line;
        let unary = match self.token {
            Token::Sign("not") => Some(Op::Not),
            Token::Sign("-") => Some(Op::Negate),
            Token::Sign("#") => Some(Op::Length),
            _ => None,
        };
        let mut kind = match unary {
            Some(op) => {
                self.advance()?;
                self.operation(UNARY)?;
                self.emit_at(line, op);
                Kind::One
            }
            None => self.simple()?,
        };
        while let Some((operator, _, right)) = binary(&self.token).filter(|(_, left, _)| *left > limit) {
            self.binary(operator, right)?;
            kind = Kind::One;
        }
        self.depth -= 1;
        Ok(kind)
    }

    fn binary(&mut self, operator: Operator, limit: u8) -> Result<(), LoadError> {
        let line = self.line;
        self.advance()?;
        let first = self.current.depth - 1;
        let op = match operator {
            Operator::And | Operator::Or => {
                let is_and = matches!(operator, Operator::And);
                let jump = self.emit_at(line, if is_and { Op::And(0) } else { Op::Or(0) });
                self.current.depth = first;
                self.operation(limit)?;
                self.current.patch(jump, self.current.here());
                return Ok(());
            }
            Operator::Join => {
                self.operation(JOINED)?;
                while self.skip("..")? {
                    self.operation(JOINED)?;
                }
                Op::Concatenate(first)
            }
            Operator::Arithmetic(operator) => {
                self.operation(limit)?;
                Op::Arithmetic(operator)
            }
            Operator::Compare(operator) => {
                self.operation(limit)?;
                Op::Compare(operator)
            }
        };
        self.emit_at(line, op);
        self.current.depth = first + 1;
        Ok(())
    }

    fn simple(&mut self) -> Result<Kind, LoadError> {
        match &mut self.token {
            Token::Number(number) => {
                let number = *number;
                self.advance()?;
                self.number(number)?;
            }
            Token::String(string) => {
                let string = std::mem::take(string);
                self.advance()?;
                self.string(string)?;
            }
            Token::Sign("nil") => self.keyword(Op::Nil(1))?,
            Token::Sign("true") => self.keyword(Op::Bool(true))?,
            Token::Sign("false") => self.keyword(Op::Bool(false))?,
            Token::Sign("{") => self.table()?,
            Token::Sign("function") => {
                self.advance()?;
                self.function(false)?;
            }
            Token::Sign("...") => {
                if !self.current.has_varargs {
                    return Err(self.error("'...' stands outside a function with '...'"));
                }
                self.advance()?;
                return Ok(Kind::Many(self.push(Op::Varargs(1), 1)?));
            }
            _ => {
                let target = self.suffixed()?;
                if let Target::Call(call) = target {
                    return Ok(Kind::Many(call));
                }
                self.load(target)?;
            }
        }
        Ok(Kind::One)
    }

    fn keyword(&mut self, op: Op) -> Result<(), LoadError> {
        self.advance()?;
        self.push(op, 1).map(drop)
    }

    pub(super) fn number(&mut self, number: f64) -> Result<(), LoadError> {
        let id = self.constants.number(number);
        self.push(Op::Constant(id), 1).map(drop)
    }

    pub(super) fn string(&mut self, string: Cow<'t, [u8]>) -> Result<(), LoadError> {
        let id = self.constants.string(string);
        self.push(Op::Constant(id), 1).map(drop)
    }

    pub(super) fn table(&mut self) -> Result<(), LoadError> {
        self.expect("{")?;
        let at = self.current.depth;
        self.push(Op::Table, 1)?;
        let mut last = Kind::One;
        while !self.is("}") {
            last = self.item(at)?;
            if !self.skip(",")? && !self.skip(";")? {
                break;
            }
        }
        self.expect("}")?;
        if self.current.depth > at + 1 {
            self.open(last);
            self.emit(Op::Items(at));
            self.current.depth = at + 1;
        }
        Ok(())
    }

    /// Compiles an item of the table at `at`. One without a key stays on the stack.
    fn item(&mut self, at: u16) -> Result<Kind, LoadError> {
        let is_named = matches!(self.token, Token::Name(_)) && *self.peek()? == Token::Sign("=");
        match self.token {
            Token::Name(name) if is_named => {
                self.advance()?;
                self.string(name.into())?;
            }
            Token::Sign("[") => {
                self.advance()?;
                self.expression()?;
                self.expect("]")?;
            }
            _ => return self.expression(),
        }
        self.expect("=")?;
        self.expression()?;
        self.emit(Op::Item(at));
        self.current.depth -= 2;
        Ok(Kind::One)
    }
}

/// A binary operator, and how strongly it binds to the left and to the right.
fn binary(token: &Token<'_>) -> Option<(Operator, u8, u8)> {
    let Token::Sign(sign) = token else { return None };
    Some(match *sign {
        "or" => (Operator::Or, 1, 1),
        "and" => (Operator::And, 2, 2),
        "<" => (Operator::Compare(Comparison::Less), 3, 3),
        "<=" => (Operator::Compare(Comparison::LessOrEqual), 3, 3),
        ">" => (Operator::Compare(Comparison::Greater), 3, 3),
        ">=" => (Operator::Compare(Comparison::GreaterOrEqual), 3, 3),
        "==" => (Operator::Compare(Comparison::Equal), 3, 3),
        "~=" => (Operator::Compare(Comparison::NotEqual), 3, 3),
        ".." => (Operator::Join, 5, 4),
        "+" => (Operator::Arithmetic(Arithmetic::Add), 6, 6),
        "-" => (Operator::Arithmetic(Arithmetic::Subtract), 6, 6),
        "*" => (Operator::Arithmetic(Arithmetic::Multiply), 7, 7),
        "/" => (Operator::Arithmetic(Arithmetic::Divide), 7, 7),
        "%" => (Operator::Arithmetic(Arithmetic::Modulo), 7, 7),
        "^" => (Operator::Arithmetic(Arithmetic::Power), 10, 9),
        _ => return None,
    })
}
