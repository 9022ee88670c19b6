//! A checked expression, and how it is evaluated: no allocation, no loop, no surprise.

use super::facts::{Depends, Facts, Kind, Read};

/// Why an expression has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fails {
    /// Something was divided by zero.
    #[error("division by zero")]
    DivisionByZero,
    /// A number grew too large.
    #[error("a number grew too large")]
    Overflow,
    /// A closure panicked.
    #[error("the closure panicked")]
    Panicked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

/// A number or a truth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scalar {
    Bool(bool),
    Int(i64),
    Double(f64),
}

/// A node. Kinds were checked when it was made, so that no mixture of them can come up here.
pub(super) enum Node {
    Constant(Scalar),
    Variable(Read, Depends),
    Arithmetic(Arithmetic, Box<[Node; 2]>),
    Comparison(Comparison, Box<[Node; 2]>),
    And(Box<[Node; 2]>),
    Or(Box<[Node; 2]>),
    Not(Box<Node>),
    Negate(Box<Node>),
    ToDouble(Box<Node>),
    ToInt(Box<Node>),
    Choose(Box<[Node; 3]>),
    OneOf(Box<Node>, Vec<Node>),
}

/// An expression that yields a truth.
pub(crate) struct Expression {
    pub(super) root: Node,
}

impl Expression {
    pub(crate) fn evaluate(&self, facts: &Facts) -> Result<bool, Fails> {
        truth(&self.root, facts)
    }

    pub(crate) fn depends(&self) -> Depends {
        self.root.depends()
    }
}

impl Node {
    fn depends(&self) -> Depends {
        let all = |nodes: &[Node]| nodes.iter().fold(Depends::NONE, |d, n| d.with(n.depends()));
        match self {
            Self::Constant(_) => Depends::NONE,
            Self::Variable(_, depends) => *depends,
            Self::Arithmetic(_, both)
            | Self::Comparison(_, both)
            | Self::And(both)
            | Self::Or(both) => all(&both[..]),
            Self::Not(one) | Self::Negate(one) | Self::ToDouble(one) | Self::ToInt(one) => {
                one.depends()
            }
            Self::Choose(three) => all(&three[..]),
            Self::OneOf(one, list) => one.depends().with(all(list)),
        }
    }
}

fn truth(node: &Node, facts: &Facts) -> Result<bool, Fails> {
    Ok(matches!(value(node, facts)?, Scalar::Bool(true)))
}

fn value(node: &Node, facts: &Facts) -> Result<Scalar, Fails> {
    Ok(match node {
        Node::Constant(scalar) => *scalar,
        // A count too large for CEL's integers stays the largest one, and so above any threshold.
        Node::Variable(Read::Int(read), _) => {
            Scalar::Int(i64::try_from(read(facts)).unwrap_or(i64::MAX))
        }
        Node::Variable(Read::Double(read), _) => Scalar::Double(read(facts)),
        Node::Arithmetic(operation, both) => {
            arithmetic(*operation, value(&both[0], facts)?, value(&both[1], facts)?)?
        }
        Node::Comparison(comparison, both) => Scalar::Bool(compare(
            *comparison,
            value(&both[0], facts)?,
            value(&both[1], facts)?,
        )),
        Node::And(both) => Scalar::Bool(decided_by(false, both, facts)?),
        Node::Or(both) => Scalar::Bool(decided_by(true, both, facts)?),
        Node::Not(one) => Scalar::Bool(!truth(one, facts)?),
        Node::Negate(one) => match value(one, facts)? {
            Scalar::Int(n) => Scalar::Int(n.checked_neg().ok_or(Fails::Overflow)?),
            Scalar::Double(n) => Scalar::Double(-n),
            truth => truth,
        },
        Node::ToDouble(one) => Scalar::Double(double(value(one, facts)?)),
        Node::ToInt(one) => Scalar::Int(whole(value(one, facts)?)?),
        Node::Choose(three) if truth(&three[0], facts)? => value(&three[1], facts)?,
        Node::Choose(three) => value(&three[2], facts)?,
        Node::OneOf(one, list) => {
            let wanted = value(one, facts)?;
            let mut found = false;
            for element in list {
                found |= compare(Comparison::Equal, wanted, value(element, facts)?);
            }
            Scalar::Bool(found)
        }
    })
}

/// CEL's logic: one side that decides is enough, whatever became of the other.
fn decided_by(decisive: bool, both: &[Node; 2], facts: &Facts) -> Result<bool, Fails> {
    let left = truth(&both[0], facts);
    if left == Ok(decisive) {
        return Ok(decisive);
    }
    let right = truth(&both[1], facts);
    if right == Ok(decisive) {
        return Ok(decisive);
    }
    left.and(right)
}

fn arithmetic(operation: Arithmetic, left: Scalar, right: Scalar) -> Result<Scalar, Fails> {
    let (Scalar::Int(a), Scalar::Int(b)) = (left, right) else {
        let (a, b) = (double(left), double(right));
        return Ok(Scalar::Double(match operation {
            Arithmetic::Add => a + b,
            Arithmetic::Subtract => a - b,
            Arithmetic::Multiply => a * b,
            Arithmetic::Divide => a / b,
            Arithmetic::Remainder => a % b,
        }));
    };
    let result = match operation {
        Arithmetic::Add => a.checked_add(b),
        Arithmetic::Subtract => a.checked_sub(b),
        Arithmetic::Multiply => a.checked_mul(b),
        Arithmetic::Divide | Arithmetic::Remainder if b == 0 => return Err(Fails::DivisionByZero),
        Arithmetic::Divide => a.checked_div(b),
        Arithmetic::Remainder => a.checked_rem(b),
    };
    result.map(Scalar::Int).ok_or(Fails::Overflow)
}

fn compare(comparison: Comparison, left: Scalar, right: Scalar) -> bool {
    let order = match (left, right) {
        (Scalar::Int(a), Scalar::Int(b)) => Some(a.cmp(&b)),
        (Scalar::Bool(a), Scalar::Bool(b)) => Some(a.cmp(&b)),
        _ => double(left).partial_cmp(&double(right)),
    };
    // Not a number: equal to nothing, and neither less nor greater.
    let Some(order) = order else {
        return comparison == Comparison::NotEqual;
    };
    match comparison {
        Comparison::Equal => order.is_eq(),
        Comparison::NotEqual => order.is_ne(),
        Comparison::Less => order.is_lt(),
        Comparison::AtMost => order.is_le(),
        Comparison::Greater => order.is_gt(),
        Comparison::AtLeast => order.is_ge(),
    }
}

fn double(scalar: Scalar) -> f64 {
    match scalar {
        Scalar::Bool(truth) => f64::from(u8::from(truth)),
        Scalar::Int(number) => number as f64,
        Scalar::Double(number) => number,
    }
}

fn whole(scalar: Scalar) -> Result<i64, Fails> {
    match scalar {
        Scalar::Double(number) if number.abs() < i64::MAX as f64 => Ok(number as i64),
        Scalar::Double(_) => Err(Fails::Overflow),
        Scalar::Int(number) => Ok(number),
        Scalar::Bool(truth) => Ok(i64::from(truth)),
    }
}

impl Scalar {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Bool(_) => Kind::Bool,
            Self::Int(_) => Kind::Int,
            Self::Double(_) => Kind::Double,
        }
    }
}
