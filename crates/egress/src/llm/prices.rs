//! What tokens cost.

use std::collections::HashMap;

use super::money::PicoUsd;
use super::usage::Tokens;

/// The table that ships with Belljar.
const SHIPPED: &str = include_str!("../../data/prices.tsv");

/// More lines than any overlay needs.
const MOST_LINES: usize = 100_000;

/// Prices of models, by provider and name.
#[derive(Clone, Debug, Default)]
pub struct PriceTable {
    prices: HashMap<(String, String), Price>,
}

/// What one model's tokens cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Price {
    rates: Rates,
    cache_write_long: Option<PicoUsd>,
    /// The longest prompt the model takes.
    pub(crate) most_input: Option<u64>,
    /// The longest answer it gives.
    pub(crate) most_output: Option<u64>,
    /// Other rates for prompts longer than this.
    above: Option<(u64, Rates)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rates {
    input: PicoUsd,
    output: PicoUsd,
    cache_read: Option<PicoUsd>,
    cache_write: Option<PicoUsd>,
}

/// Why a line is no price.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the price table is not provider, model and prices between tabs")]
pub struct InvalidPrices {
    /// The line, counted from 1.
    pub line: usize,
}

impl PriceTable {
    /// The table that ships with Belljar.
    ///
    /// # Errors
    /// Never with the table as shipped; a test holds it to that.
    pub fn shipped() -> Result<Self, InvalidPrices> {
        Self::default().with(SHIPPED)
    }

    /// This table with the prices of another laid over it: an operator's own, in the same form.
    ///
    /// # Errors
    /// When a line is no price.
    pub fn with(mut self, text: &str) -> Result<Self, InvalidPrices> {
        for (line, row) in (1..).zip(text.lines()) {
            if row.is_empty() || row.starts_with('#') {
                continue;
            }
            let (key, price) = parse_row(row)
                .filter(|_| line <= MOST_LINES)
                .ok_or(InvalidPrices { line })?;
            self.prices.insert(key, price);
        }
        Ok(self)
    }

    pub(crate) fn price(&self, provider: &str, model: &str) -> Option<&Price> {
        // Cheap enough once per call to a model.
        self.prices.get(&(provider.to_owned(), model.to_owned()))
    }
}

impl Price {
    /// What a call cost.
    pub(crate) fn cost(&self, tokens: &Tokens) -> PicoUsd {
        let prompt = tokens
            .input
            .saturating_add(tokens.cache_read)
            .saturating_add(tokens.cache_write);
        let rates = match &self.above {
            Some((threshold, rates)) if prompt > *threshold => rates,
            _ => &self.rates,
        };
        let write = rates.cache_write.unwrap_or(rates.input);
        let long = tokens.cache_write_long.min(tokens.cache_write);
        rates
            .input
            .times(tokens.input)
            .plus(
                rates
                    .cache_read
                    .unwrap_or(rates.input)
                    .times(tokens.cache_read),
            )
            .plus(write.times(tokens.cache_write.saturating_sub(long)))
            .plus(
                self.cache_write_long
                    .unwrap_or(write)
                    .max(write)
                    .times(long),
            )
            .plus(rates.output.times(tokens.output))
    }

    /// The most a token of a prompt can cost, whatever is made of it.
    pub(crate) fn dearest_input(&self) -> PicoUsd {
        let of = |rates: &Rates| {
            let others = [rates.cache_read, rates.cache_write];
            others.into_iter().flatten().fold(rates.input, PicoUsd::max)
        };
        let above = self.above.as_ref().map(|(_, rates)| of(rates));
        [above, self.cache_write_long]
            .into_iter()
            .flatten()
            .fold(of(&self.rates), PicoUsd::max)
    }

    /// The most a token of an answer can cost.
    pub(crate) fn dearest_output(&self) -> PicoUsd {
        let above = self
            .above
            .as_ref()
            .map_or(PicoUsd(0), |(_, rates)| rates.output);
        self.rates.output.max(above)
    }
}

fn parse_row(row: &str) -> Option<((String, String), Price)> {
    let cells: Vec<_> = row.split('\t').collect();
    let [
        provider,
        model,
        input,
        output,
        read,
        write,
        long,
        most_input,
        most_output,
        above,
    ] = cells.as_slice()
    else {
        return None;
    };
    let rates = Rates {
        input: PicoUsd(input.parse().ok()?),
        output: PicoUsd(output.parse().ok()?),
        cache_read: optional(read)?.map(PicoUsd),
        cache_write: optional(write)?.map(PicoUsd),
    };
    let above = match *above {
        "-" => None,
        text => Some(parse_above(text, &rates)?),
    };
    let price = Price {
        rates,
        cache_write_long: optional(long)?.map(PicoUsd),
        most_input: optional(most_input)?,
        most_output: optional(most_output)?,
        above,
    };
    Some((((*provider).to_owned(), (*model).to_owned()), price))
}

fn parse_above(text: &str, below: &Rates) -> Option<(u64, Rates)> {
    let cells: Vec<_> = text.split(':').collect();
    let [threshold, input, output, read, write] = cells.as_slice() else {
        return None;
    };
    let rates = Rates {
        input: PicoUsd(input.parse().ok()?),
        output: optional(output)?.map_or(below.output, PicoUsd),
        cache_read: optional(read)?.map(PicoUsd).or(below.cache_read),
        cache_write: optional(write)?.map(PicoUsd).or(below.cache_write),
    };
    Some((threshold.parse().ok()?, rates))
}

/// A number, or `-` for none. The outer `None` is an error.
fn optional(cell: &str) -> Option<Option<u64>> {
    if cell == "-" {
        Some(None)
    } else {
        cell.parse().ok().map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_table_is_whole_and_an_overlay_wins() {
        let table = PriceTable::shipped().unwrap();
        assert!(table.prices.len() > 500);
        let sonnet = table.price("anthropic", "claude-sonnet-4-5").unwrap();
        assert_eq!(sonnet.rates.input, PicoUsd(3_000_000));
        assert_eq!(sonnet.dearest_input(), PicoUsd(6_000_000));
        assert!(table.price("openai", "no-such-model").is_none());
        let table = table.with("# mine\nopenai\tgpt-4o\t1\t2\t-\t-\t-\t-\t-\t-\nlocal\tq\t0\t0\t-\t-\t-\t-\t-\t-\n").unwrap();
        assert_eq!(
            table.price("openai", "gpt-4o").unwrap().rates.output,
            PicoUsd(2)
        );
        assert!(table.price("local", "q").is_some());
        assert_eq!(
            PriceTable::default().with("openai\tx\t1\n").err(),
            Some(InvalidPrices { line: 1 })
        );
    }

    #[test]
    fn costs_follow_the_kinds_of_tokens_and_the_length() {
        let row = "p\tm\t10\t100\t1\t12\t20\t-\t-\t1000:20:150:2:-";
        let table = PriceTable::default().with(row).unwrap();
        let price = table.price("p", "m").unwrap();
        let tokens = |input, cache_read, cache_write, output| Tokens {
            input,
            cache_read,
            cache_write,
            output,
            ..Tokens::default()
        };
        assert_eq!(price.cost(&tokens(5, 0, 0, 3)), PicoUsd(350));
        assert_eq!(price.cost(&tokens(5, 7, 2, 0)), PicoUsd(50 + 7 + 24));
        let long = Tokens {
            cache_write_long: 2,
            ..tokens(0, 0, 2, 0)
        };
        assert_eq!(price.cost(&long), PicoUsd(40));
        assert_eq!(price.cost(&tokens(1001, 0, 0, 1)), PicoUsd(20 * 1001 + 150));
        assert_eq!(price.cost(&tokens(u64::MAX, 0, 0, 1)), PicoUsd(u64::MAX));
        assert_eq!(
            (price.dearest_input(), price.dearest_output()),
            (PicoUsd(20), PicoUsd(150))
        );
    }

    #[test]
    fn dollars_become_whole_numbers() {
        assert_eq!(PicoUsd::from_usd(1.5), PicoUsd(1_500_000_000_000));
        assert_eq!(PicoUsd::from_usd(-1.0), PicoUsd(0));
        assert_eq!(PicoUsd::from_usd(f64::NAN), PicoUsd(0));
    }
}
