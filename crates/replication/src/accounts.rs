//! Accounts by worker. One that bounds nothing, holds nothing and has used nothing up is not written down: under a contract
//! without a budget that is everybody's, and a million of them cost no memory.

use belljar_policy::Budget;

use crate::account::{Account, Share};

/// Where an account is that is not written down.
const PLAIN: u32 = u32::MAX;

/// The account of everybody who has none of their own. What is taken from it leaves no trace, as it has no bounds.
static NO_BOUNDS: Account = Account::untouched(Budget::UNBOUNDED);

/// A worker's account among [`Accounts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number(u32);

#[derive(Clone, Debug, Default)]
pub(crate) struct Accounts {
    written: Vec<Account>,
    vacant: Vec<u32>,
}

impl Accounts {
    pub(crate) fn clear(&mut self) {
        self.written.clear();
        self.vacant.clear();
    }

    /// Opens an account.
    pub(crate) fn open(&mut self, share: &Share) -> Number {
        if share.granted == Budget::UNBOUNDED && share.own == Budget::ZERO {
            return Number(PLAIN);
        }
        self.write(Account::new(share))
    }

    /// Opens an account that is written down in any case: the fleet's, whose bounds may change.
    pub(crate) fn write(&mut self, account: Account) -> Number {
        if let Some(at) = self.vacant.pop() {
            self.written[at as usize] = account;
            return Number(at);
        }
        self.written.push(account);
        Number((self.written.len() - 1) as u32)
    }

    pub(crate) fn of(&self, number: Number) -> &Account {
        self.written.get(number.0 as usize).unwrap_or(&NO_BOUNDS)
    }

    /// The account if it is written down: what is taken from another leaves no trace.
    pub(crate) fn written_mut(&mut self, number: Number) -> Option<&mut Account> {
        self.written.get_mut(number.0 as usize)
    }

    /// The account, written down from now on.
    pub(crate) fn of_mut(&mut self, number: &mut Number) -> &mut Account {
        if number.0 == PLAIN {
            *number = self.write(NO_BOUNDS);
        }
        &mut self.written[number.0 as usize]
    }

    pub(crate) fn close(&mut self, number: Number) {
        if number.0 != PLAIN {
            self.vacant.push(number.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use belljar_policy::Amount;

    use super::*;
    use crate::account::Usage;

    #[test]
    fn an_account_without_bounds_is_written_down_when_something_is_used() {
        let mut accounts = Accounts::default();
        let share = Share {
            granted: Budget::UNBOUNDED,
            own: Budget::ZERO,
        };
        let mut number = accounts.open(&share);
        assert!(accounts.written.is_empty());
        assert_eq!(accounts.of(number).free(), Budget::UNBOUNDED);
        let usage = Usage {
            tokens: 7,
            ..Usage::default()
        };
        assert!(accounts.of_mut(&mut number).charge(&usage).is_zero());
        assert_eq!(accounts.of(number).used, usage);
        accounts.close(number);
        let bounded = Share {
            granted: Budget::filled(Amount::of(3)),
            own: Budget::ZERO,
        };
        let again = accounts.open(&bounded);
        assert_eq!(again, number, "its place is used again");
        assert!(accounts.of(again).used.is_zero());
    }
}
