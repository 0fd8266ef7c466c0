//! A set of members, by role.

use crate::ids::Role;
use crate::layout::DISKS_MAX;
use std::ops::{BitAnd, BitOr, BitOrAssign, Sub, SubAssign};

/// A set of members.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Roles(u128);

const _: () = assert!(DISKS_MAX <= u128::BITS);

impl Roles {
    pub(crate) const EMPTY: Roles = Roles(0);

    /// Those below `disks`.
    pub(crate) fn below(disks: u32) -> Self {
        Roles(u128::MAX >> (u128::BITS - disks))
    }

    #[inline]
    pub(crate) fn one(role: Role) -> Self {
        Roles(1 << role.0)
    }

    #[inline]
    pub(crate) fn of_option(role: Option<Role>) -> Self {
        role.map_or(Roles::EMPTY, Roles::one)
    }

    #[inline]
    pub(crate) fn has(self, role: Role) -> bool {
        self.0 >> role.0 & 1 == 1
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) fn len(self) -> u32 {
        self.0.count_ones()
    }

    #[inline]
    pub(crate) fn contains(self, other: Roles) -> bool {
        other.0 & !self.0 == 0
    }

    #[inline]
    pub(crate) fn insert(&mut self, role: Role) {
        self.0 |= 1 << role.0;
    }

    /// The roles, lowest first.
    #[inline]
    pub(crate) fn iter(self) -> impl Iterator<Item = Role> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let role = (left != 0).then(|| left.trailing_zeros())?;
            left &= left - 1;
            Some(Role(role))
        })
    }
}

impl BitAnd for Roles {
    type Output = Roles;
    #[inline]
    fn bitand(self, other: Roles) -> Roles {
        Roles(self.0 & other.0)
    }
}

impl BitOr for Roles {
    type Output = Roles;
    #[inline]
    fn bitor(self, other: Roles) -> Roles {
        Roles(self.0 | other.0)
    }
}

impl Sub for Roles {
    type Output = Roles;
    #[inline]
    fn sub(self, other: Roles) -> Roles {
        Roles(self.0 & !other.0)
    }
}

impl BitOrAssign for Roles {
    #[inline]
    fn bitor_assign(&mut self, other: Roles) {
        self.0 |= other.0;
    }
}

impl SubAssign for Roles {
    #[inline]
    fn sub_assign(&mut self, other: Roles) {
        self.0 &= !other.0;
    }
}

impl FromIterator<Role> for Roles {
    fn from_iter<T: IntoIterator<Item = Role>>(roles: T) -> Self {
        roles.into_iter().fold(Roles::EMPTY, |set, role| set | Roles::one(role))
    }
}

/// For tests.
#[cfg(test)]
impl FromIterator<u32> for Roles {
    fn from_iter<T: IntoIterator<Item = u32>>(roles: T) -> Self {
        roles.into_iter().map(Role).collect()
    }
}

impl std::fmt::Debug for Roles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets() {
        let set: Roles = [0, 5, 127].into_iter().collect();
        assert_eq!(
            (set.len(), set.iter().collect::<Vec<_>>()),
            (3, vec![Role(0), Role(5), Role(127)])
        );
        assert_eq!(set - Roles::one(Role(5)), [127, 0].into_iter().collect());
        assert!(Roles::below(128).contains(set) && !Roles::below(127).contains(set));
        assert_eq!(Roles::below(3) & set, Roles::one(Role(0)));
        assert!(Roles::of_option(None).is_empty());
    }
}
