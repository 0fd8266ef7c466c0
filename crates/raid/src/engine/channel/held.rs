//! Bios that a channel holds back: all new ones while the array is suspended, and writes until the
//! members are on record as dirty.
//!
//! Invariants:
//! * Bios of one kind go on in the order in which they came.
//! * A bio with `NOWAIT` is never held.

use drystone_core::{Bio, BioFlags, BioList};

/// See the module's text.
#[derive(Default)]
pub(super) struct HeldBios {
    suspended: BioList,
    writes: BioList,
}

impl HeldBios {
    /// Hold a bio until the array is resumed.
    ///
    /// # Errors
    /// A bio that must not wait is handed back.
    pub(super) fn hold(&mut self, bio: Box<Bio>) -> Result<(), Box<Bio>> {
        push(&mut self.suspended, bio)
    }

    /// Hold a write until the array is dirty.
    ///
    /// # Errors
    /// A write that must not wait is handed back.
    pub(super) fn hold_write(&mut self, bio: Box<Bio>) -> Result<(), Box<Bio>> {
        push(&mut self.writes, bio)
    }

    /// Take all bios, to start them again. The writes come first: they came before the array was
    /// suspended.
    pub(super) fn release(&mut self) -> BioList {
        let mut all = self.writes.take();
        all.append(&mut self.suspended);
        all
    }

    /// Take all bios, to cancel them.
    pub(super) fn cancel(&mut self) -> BioList {
        let mut all = self.suspended.take();
        all.append(&mut self.writes);
        all
    }

    pub(super) fn len(&self) -> usize {
        self.suspended.len() + self.writes.len()
    }
}

fn push(list: &mut BioList, bio: Box<Bio>) -> Result<(), Box<Bio>> {
    if bio.flags.contains(BioFlags::NOWAIT) {
        return Err(bio);
    }
    list.push(bio);
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn bio(number: u64) -> Box<Bio> {
        let mut bio = Bio::flush();
        bio.user_data = number;
        bio
    }

    fn numbers(list: BioList) -> Vec<u64> {
        list.iter().map(|bio| bio.user_data).collect()
    }

    fn held() -> HeldBios {
        let mut held = HeldBios::default();
        assert!(held.hold_write(bio(0)).is_ok());
        assert!(held.hold(bio(1)).is_ok() && held.hold(bio(2)).is_ok());
        assert!(held.hold_write(bio(3)).is_ok());
        held
    }

    #[test]
    fn writes_go_on_before_what_was_suspended() {
        let mut held = held();
        assert_eq!(held.len(), 4);
        assert_eq!(numbers(held.release()), [0, 3, 1, 2]);
        assert_eq!((held.len(), held.release().len()), (0, 0));
        let mut held = self::held();
        assert_eq!(numbers(held.cancel()), [1, 2, 0, 3]);
        assert_eq!(held.len(), 0);
    }

    #[test]
    fn what_must_not_wait_is_handed_back() {
        let mut held = HeldBios::default();
        let in_a_hurry = || {
            let mut bio = bio(7);
            bio.flags |= BioFlags::NOWAIT;
            bio
        };
        assert!(held.hold(in_a_hurry()).is_err_and(|bio| bio.user_data == 7));
        assert!(held.hold_write(in_a_hurry()).is_err_and(|bio| bio.user_data == 7));
        assert_eq!(held.len(), 0);
    }
}
