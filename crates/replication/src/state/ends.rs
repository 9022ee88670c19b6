//! How workers leave the state, and who gets back what they held.

use belljar_policy::OnParentExit;

use super::{Fault, MAX_OBITUARIES, Obituary, State};
use crate::holes::enforced;
use crate::rate::Rate;
use crate::tree::{FLEET, Status};
use crate::{BootId, Code, Jti, Now, WorkerId};

impl State {
    pub(super) fn worker_ended(
        &mut self,
        at: Now,
        worker: WorkerId,
        code: Code,
    ) -> Result<(), Fault> {
        if !code.is_end() {
            return Err(Fault::WrongCode(code));
        }
        let slot = self.tree.find(worker).ok_or(Fault::UnknownWorker(worker))?;
        let must_follow = self.contract.on_parent_exit == OnParentExit::Kill;
        let has_children = self.tree.node(slot).children > 0;
        if enforced!(ParentExitKills, must_follow && has_children) {
            return Err(Fault::HasChildren(worker));
        }
        self.end(at, slot, code);
        Ok(())
    }

    /// Takes a worker out: its grants are void, its children move up, its parent gets back what it did not use up.
    fn end(&mut self, at: Now, slot: u32, code: Code) {
        if enforced!(GrantsEndWithParent, true) {
            while let Some(jti) = self.grants.newest_of(&self.tree, slot) {
                self.grants.withdraw(&mut self.tree, jti);
            }
        }
        let (depth, children) = (self.tree.node(slot).depth, self.tree.node(slot).children);
        let worker = self.tree.id(slot);
        let parent = self.tree.parent(slot);
        let account = self.tree.account(slot);
        let (used, memory_mb) = (account.used, account.own.memory_mb.number().unwrap_or(0));
        let price = self.tree.cost(slot);
        self.tree.give_back(parent, &price);
        self.tree.inherit(parent, &used);
        if children > 0 {
            self.move_children_up(slot, worker);
        }
        if self.tree.status(slot) == Some(Status::Quarantined) {
            self.quarantined -= 1;
        }
        self.held_memory_mb = self.held_memory_mb.wrapping_sub(memory_mb);
        if !self.orphans.is_empty() {
            self.orphans.remove(&worker);
        }
        self.tree.remove(slot);
        if self.ended.len() == MAX_OBITUARIES {
            self.ended.pop_front();
        }
        self.ended.push_back(Obituary {
            worker,
            parent: (parent != FLEET).then(|| self.tree.id(parent)),
            depth,
            code,
            at,
        });
    }

    /// Children that outlive their parent are charged to its parent: what they cost fitted into the dead
    /// one's grant, so it fits into what that grant gives back.
    fn move_children_up(&mut self, slot: u32, ended: WorkerId) {
        let children: Vec<u32> = self.tree.children(slot).collect();
        let parent = self.tree.parent(slot);
        let mut above = vec![ended];
        above.extend(self.orphans.get(&ended).into_iter().flatten());
        // Oldest first, so that the newest is again the first of its new siblings.
        for child in children.into_iter().rev() {
            self.tree.unlink(child);
            self.tree.link(child, parent);
            let (id, price) = (self.tree.id(child), self.tree.cost(child));
            self.tree.take(parent, &price);
            self.orphans.entry(id).or_default().extend(&above);
        }
    }

    pub(super) fn controller_started(&mut self, at: Now, boot: BootId) {
        self.is_latched &= enforced!(LatchSurvivesRestart, true);
        self.drop_grants();
        if enforced!(LostAtRestart, true) {
            for slot in self.tree.subtree(FLEET).into_iter().rev() {
                self.end(at, slot, Code::Lost);
            }
        }
        // Rates are counted on the boot clock, which may have started anew.
        self.spawns = Rate::default();
        self.denials = Rate::default();
        self.boot = Some(boot);
    }

    pub(super) fn drop_grants(&mut self) {
        let jtis: Vec<Jti> = self.grants.iter().map(|grant| grant.jti).collect();
        for jti in jtis {
            self.grants.withdraw(&mut self.tree, jti);
        }
    }
}
