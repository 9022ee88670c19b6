//! From a CEL text to a checked expression. Whatever can be wrong is found here, when a contract is
//! loaded, and not at the first grant.
//!
//! The `cel` crate parses; its tree is checked for names and kinds. What is taken is the part of CEL that
//! a threshold needs: numbers, truths, comparison, arithmetic, `&&`, `||`, `!`, `?:`, `in [..]`, `int()` and
//! `double()`. So an expression always ends, and at load time it is known to yield a truth.

use belljar_policy::StopCondition;
use cel::common::ast::{CallExpr, Expr, LiteralValue, operators};
use cel::parser::{Expression as Parsed, PrattParser};

use super::expression::{Arithmetic, Comparison, Expression, Node, Scalar};
use super::facts::{Kind, VARIABLES};

/// The longest expression.
pub const MAX_EXPRESSION_BYTES: usize = 1024;
/// The most conditions of a contract.
pub const MAX_CONDITIONS: usize = 32;
/// The deepest nesting of brackets, signs and choices.
const MAX_NESTING: usize = 24;
/// The most parts of an expression.
const MAX_PARTS: usize = 256;

/// A stop condition that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stop condition `{name}` can't be used")]
pub struct InvalidCondition {
    /// Its name.
    pub name: String,
    /// The line of the contract file, 0 if there is none.
    pub line: u32,
    /// What is wrong with it.
    #[source]
    pub problem: Problem,
}

/// What is wrong with a stop condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// It is too long or too deeply nested, or there are too many.
    #[error("{what} (at most {most})")]
    TooMuch {
        /// What there is too much of.
        what: &'static str,
        /// How much there may be.
        most: usize,
    },
    /// Another condition has its name, or it has none.
    #[error("each condition needs a name of its own")]
    Name,
    /// It is not CEL.
    #[error("column {column}: {message}")]
    Syntax {
        /// Where, counted from 1.
        column: usize,
        /// What the parser says.
        message: String,
    },
    /// It uses a name that means nothing here.
    #[error("column {column}: there is no `{name}`{}", .nearest.map(|n| format!(", did you mean `{n}`?")).unwrap_or_default())]
    UnknownName {
        /// Where, counted from 1.
        column: usize,
        /// The name.
        name: String,
        /// The one it may stand for.
        nearest: Option<&'static str>,
    },
    /// It uses a part of CEL that conditions do not have.
    #[error("{0} can't be used in a stop condition")]
    Unsupported(String),
    /// It mixes what can't be mixed.
    #[error("{0}")]
    Mixed(&'static str),
}

pub(super) fn check_names(conditions: &[StopCondition]) -> Result<(), InvalidCondition> {
    if let Some(extra) = conditions.get(MAX_CONDITIONS) {
        let what = "too many stop conditions";
        return Err(invalid(
            extra,
            Problem::TooMuch {
                what,
                most: MAX_CONDITIONS,
            },
        ));
    }
    for (at, condition) in conditions.iter().enumerate() {
        let is_taken = conditions[..at].iter().any(|c| c.name == condition.name);
        if is_taken || condition.name.is_empty() || condition.name.len() > 128 {
            return Err(invalid(condition, Problem::Name));
        }
    }
    Ok(())
}

fn invalid(condition: &StopCondition, problem: Problem) -> InvalidCondition {
    InvalidCondition {
        name: condition.name.clone(),
        line: condition.line,
        problem,
    }
}

pub(super) fn compile(condition: &StopCondition) -> Result<Expression, InvalidCondition> {
    expression(&condition.when).map_err(|problem| invalid(condition, problem))
}

pub(super) fn expression(text: &str) -> Result<Expression, Problem> {
    check_size(text)?;
    let parser = PrattParser::new()
        .max_recursion_depth(2 * MAX_NESTING as u16)
        .max_expression_node_count(4 * MAX_PARTS)
        .error_reporting_limit(1);
    let parsed = parser.parse(text).map_err(|errors| {
        let first = errors.errors.into_iter().next();
        let column = first
            .as_ref()
            .map_or(1, |e| usize::try_from(e.pos.1).unwrap_or(1));
        let message = first.map_or_else(|| "not an expression".to_owned(), |e| e.msg);
        Problem::Syntax { column, message }
    })?;
    let mut compiler = Compiler { text, parts: 0 };
    let (root, kind) = compiler.node(&parsed, 0)?;
    match kind {
        Kind::Bool => Ok(Expression { root }),
        _ => Err(Problem::Mixed(
            "a stop condition must be true or false: compare the number with something",
        )),
    }
}

/// Looked at before the parser sees it, which goes as deep as the text does.
fn check_size(text: &str) -> Result<(), Problem> {
    if text.len() > MAX_EXPRESSION_BYTES {
        let what = "the expression is too long in bytes";
        return Err(Problem::TooMuch {
            what,
            most: MAX_EXPRESSION_BYTES,
        });
    }
    let (mut depth, mut choices, mut signs) = (0usize, 0usize, 0usize);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b'?' => choices += 1,
            _ => {}
        }
        signs = match byte {
            b'!' | b'-' => signs + 1,
            b' ' | b'\t' | b'\n' | b'\r' => signs,
            _ => 0,
        };
        if depth.max(choices).max(signs) > MAX_NESTING {
            let what = "the expression is nested too deeply";
            return Err(Problem::TooMuch {
                what,
                most: MAX_NESTING,
            });
        }
    }
    Ok(())
}

struct Compiler<'a> {
    text: &'a str,
    parts: usize,
}

type Checked = Result<(Node, Kind), Problem>;

impl Compiler<'_> {
    fn node(&mut self, parsed: &Parsed, depth: usize) -> Checked {
        self.parts += 1;
        if self.parts > MAX_PARTS || depth > MAX_PARTS / 2 {
            let what = "the expression has too many parts";
            return Err(Problem::TooMuch {
                what,
                most: MAX_PARTS / 2,
            });
        }
        match &parsed.expr {
            Expr::Literal(literal) => constant(literal),
            Expr::Ident(_) | Expr::Select(_) => self.variable(&parsed.expr),
            Expr::Call(call) => self.call(call, depth + 1),
            Expr::Comprehension(_) => Err(Problem::Unsupported("a loop".to_owned())),
            Expr::List(_) => Err(Problem::Unsupported("a list on its own".to_owned())),
            Expr::Map(_) => Err(Problem::Unsupported("a map".to_owned())),
            Expr::Struct(_) => Err(Problem::Unsupported("a structure".to_owned())),
            Expr::Unspecified => Err(Problem::Unsupported("an empty part".to_owned())),
        }
    }

    fn variable(&self, expr: &Expr) -> Checked {
        let name =
            dotted(expr).ok_or_else(|| Problem::Unsupported("a field of a value".to_owned()))?;
        if let Some(variable) = VARIABLES.iter().find(|v| v.name == name) {
            return Ok((
                Node::Variable(variable.value, variable.depends),
                variable.value.kind(),
            ));
        }
        let likeness = |v: &&super::Variable| strsim::damerau_levenshtein(v.name, &name);
        let nearest = VARIABLES.iter().min_by_key(likeness);
        Err(Problem::UnknownName {
            column: self
                .text
                .find(&name)
                .map_or(1, |at| self.text[..at].chars().count() + 1),
            nearest: nearest
                .filter(|v| likeness(v) <= name.len().div_ceil(2))
                .map(|v| v.name),
            name,
        })
    }

    fn call(&mut self, call: &CallExpr, depth: usize) -> Checked {
        let name = call.func_name.as_str();
        if call.target.is_some() {
            return Err(Problem::Unsupported(format!("the method `{name}`")));
        }
        match (name, call.args.as_slice()) {
            (operators::IN, [one, list]) => self.one_of(one, list, depth),
            (operators::CONDITIONAL, [a, b, c]) => {
                let condition = self.truth(a, depth)?;
                let (b, yes) = self.node(b, depth)?;
                let (c, no) = self.node(c, depth)?;
                if yes != no {
                    return Err(Problem::Mixed("both results of `?:` must be of one kind"));
                }
                Ok((Node::Choose(Box::new([condition, b, c])), yes))
            }
            (operators::LOGICAL_NOT, [one]) => {
                Ok((Node::Not(Box::new(self.truth(one, depth)?)), Kind::Bool))
            }
            (operators::LOGICAL_AND | operators::LOGICAL_OR, [first, rest @ ..]) => {
                self.logic(name == operators::LOGICAL_AND, first, rest, depth)
            }
            (operators::NEGATE, [one]) => {
                let (node, kind) = self.number(one, depth)?;
                Ok((Node::Negate(Box::new(node)), kind))
            }
            ("double", [one]) => Ok((
                Node::ToDouble(Box::new(self.number(one, depth)?.0)),
                Kind::Double,
            )),
            ("int", [one]) => Ok((Node::ToInt(Box::new(self.number(one, depth)?.0)), Kind::Int)),
            (_, [a, b]) => self.binary(name, a, b, depth),
            _ => Err(Problem::Unsupported(format!("`{name}`"))),
        }
    }

    fn logic(&mut self, is_and: bool, first: &Parsed, rest: &[Parsed], depth: usize) -> Checked {
        let mut node = self.truth(first, depth)?;
        for next in rest {
            let both = Box::new([node, self.truth(next, depth)?]);
            node = if is_and {
                Node::And(both)
            } else {
                Node::Or(both)
            };
        }
        Ok((node, Kind::Bool))
    }

    fn binary(&mut self, name: &str, a: &Parsed, b: &Parsed, depth: usize) -> Checked {
        let arithmetic = match name {
            operators::ADD => Some(Arithmetic::Add),
            operators::SUBSTRACT => Some(Arithmetic::Subtract),
            operators::MULTIPLY => Some(Arithmetic::Multiply),
            operators::DIVIDE => Some(Arithmetic::Divide),
            operators::MODULO => Some(Arithmetic::Remainder),
            _ => None,
        };
        if let Some(operation) = arithmetic {
            let (a, left) = self.number(a, depth)?;
            let (b, right) = self.number(b, depth)?;
            if left != right {
                return Err(Problem::Mixed(
                    "whole and decimal numbers don't mix: write 2.0, or use double()",
                ));
            }
            if operation == Arithmetic::Remainder && left == Kind::Double {
                return Err(Problem::Mixed("`%` is for whole numbers"));
            }
            return Ok((Node::Arithmetic(operation, Box::new([a, b])), left));
        }
        let comparison = match name {
            operators::EQUALS => Comparison::Equal,
            operators::NOT_EQUALS => Comparison::NotEqual,
            operators::LESS => Comparison::Less,
            operators::LESS_EQUALS => Comparison::AtMost,
            operators::GREATER => Comparison::Greater,
            operators::GREATER_EQUALS => Comparison::AtLeast,
            _ => return Err(Problem::Unsupported(format!("`{name}`"))),
        };
        let (a, left) = self.node(a, depth)?;
        let (b, right) = self.node(b, depth)?;
        if (left == Kind::Bool) != (right == Kind::Bool) {
            return Err(Problem::Mixed("a truth can't be compared with a number"));
        }
        Ok((Node::Comparison(comparison, Box::new([a, b])), Kind::Bool))
    }

    fn one_of(&mut self, one: &Parsed, list: &Parsed, depth: usize) -> Checked {
        let (one, _) = self.number(one, depth)?;
        let Expr::List(list) = &list.expr else {
            return Err(Problem::Unsupported(
                "`in` without a list of numbers".to_owned(),
            ));
        };
        let elements: Result<_, _> = list
            .elements
            .iter()
            .map(|e| Ok(self.number(e, depth)?.0))
            .collect();
        Ok((Node::OneOf(Box::new(one), elements?), Kind::Bool))
    }

    fn truth(&mut self, parsed: &Parsed, depth: usize) -> Result<Node, Problem> {
        match self.node(parsed, depth)? {
            (node, Kind::Bool) => Ok(node),
            _ => Err(Problem::Mixed(
                "`&&`, `||`, `!` and `?:` ask for a truth, not a number",
            )),
        }
    }

    fn number(&mut self, parsed: &Parsed, depth: usize) -> Checked {
        match self.node(parsed, depth)? {
            (_, Kind::Bool) => Err(Problem::Mixed("this asks for a number, not a truth")),
            number => Ok(number),
        }
    }
}

fn constant(literal: &LiteralValue) -> Checked {
    let scalar = match literal {
        LiteralValue::Boolean(truth) => Scalar::Bool(*truth.inner()),
        LiteralValue::Int(number) => Scalar::Int(*number.inner()),
        LiteralValue::Double(number) => Scalar::Double(*number.inner()),
        LiteralValue::UInt(_) => {
            return Err(Problem::Unsupported("a number ending in `u`".to_owned()));
        }
        _ => return Err(Problem::Unsupported("a text".to_owned())),
    };
    Ok((Node::Constant(scalar), scalar.kind()))
}

/// `a.b` as it was written.
fn dotted(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Ident(name) => Some(name.clone()),
        Expr::Select(select) if !select.test => match &select.operand.expr {
            Expr::Ident(name) => Some(format!("{name}.{}", select.field)),
            Expr::Select(_) => Some(format!(
                "{}.{}",
                dotted(&select.operand.expr)?,
                select.field
            )),
            _ => None,
        },
        _ => None,
    }
}
