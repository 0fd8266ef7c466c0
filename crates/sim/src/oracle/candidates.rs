//! The writes that each sector may hold: one number for most sectors, a list for the others.
//!
//! Invariants:
//! * `heads[s]` is the id of the one write that sector `s` surely holds, or [`LIST`] with the
//!   index of its list.
//! * A list that is not being edited has at least two entries, in the order in which their writes
//!   began. Its `owner` is its sector, or [`NOBODY`] if the list is free.

/// Marks a head that is the index of a list.
const LIST: u32 = 1 << 31;

/// Owner of a list that is free.
const NOBODY: u64 = u64::MAX;

/// A write that a sector may hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry(u32);

impl Entry {
    /// Reads do not return it any more, because they have returned later ones; a power cut may
    /// bring it back.
    pub const HIDDEN: u32 = 1;
    /// It may have been lost: even if its write was acknowledged, it supersedes nothing.
    pub const UNSURE: u32 = 2;
    /// Unsure since a power cut: a read that returns it settles it.
    pub const CUT: u32 = 4;
    const SHIFT: u32 = 3;

    pub fn new(id: u32) -> Self {
        Entry(id << Self::SHIFT)
    }

    #[inline]
    pub fn id(self) -> u32 {
        self.0 >> Self::SHIFT
    }

    #[inline]
    pub fn is(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    pub fn set(&mut self, flags: u32) {
        self.0 |= flags;
    }

    pub fn clear(&mut self, flags: u32) {
        self.0 &= !flags;
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let flags = [(Self::HIDDEN, "h"), (Self::UNSURE, "u"), (Self::CUT, "c")];
        let flags = flags.iter().filter(|(flag, _)| self.is(*flag)).map(|(_, name)| *name);
        write!(f, "{}{}", self.id(), flags.collect::<String>())
    }
}

/// The writes that a sector may hold.
pub(super) enum Held<'a> {
    /// Surely this write.
    One(u32),
    /// One of these writes.
    Many(&'a [Entry]),
}

#[derive(Clone, Debug)]
struct List {
    owner: u64,
    entries: Vec<Entry>,
}

/// The candidates of all sectors.
#[derive(Clone, Debug)]
pub(super) struct Candidates {
    heads: Vec<u32>,
    lists: Vec<List>,
    free: Vec<u32>,
}

impl Candidates {
    /// All sectors hold write 0.
    pub fn new(sectors: u64) -> Self {
        Candidates { heads: vec![0; sectors as usize], lists: Vec::new(), free: Vec::new() }
    }

    pub fn sectors(&self) -> u64 {
        self.heads.len() as u64
    }

    pub fn grow(&mut self, sectors: u64, id: u32) {
        self.heads.resize(sectors as usize, id);
    }

    #[inline]
    pub fn held(&self, sector: u64) -> Held<'_> {
        let head = self.heads[sector as usize];
        if head & LIST == 0 {
            Held::One(head)
        } else {
            Held::Many(&self.lists[(head & !LIST) as usize].entries)
        }
    }

    /// Adds a write that began just now. If the sector has a list, `prune` first works on it.
    #[inline]
    pub fn push(&mut self, sector: u64, id: u32, prune: impl FnOnce(&mut Vec<Entry>)) {
        let head = self.heads[sector as usize];
        let list = if head & LIST == 0 { self.open(sector, head) } else { head & !LIST };
        let entries = &mut self.lists[list as usize].entries;
        if head & LIST != 0 {
            prune(entries);
        }
        entries.push(Entry::new(id));
    }

    /// A list for a sector that held one write.
    fn open(&mut self, sector: u64, id: u32) -> u32 {
        let list = self.free.pop().unwrap_or_else(|| {
            self.lists.push(List { owner: NOBODY, entries: Vec::with_capacity(4) });
            self.lists.len() as u32 - 1
        });
        let List { owner, entries } = &mut self.lists[list as usize];
        *owner = sector;
        entries.push(Entry::new(id));
        self.heads[sector as usize] = list | LIST;
        list
    }

    /// Edits the list of a sector, if it has one. At least one entry must remain.
    #[inline]
    pub fn edit(&mut self, sector: u64, work: impl FnOnce(&mut Vec<Entry>)) {
        let head = self.heads[sector as usize];
        if head & LIST == 0 {
            return;
        }
        work(&mut self.lists[(head & !LIST) as usize].entries);
        self.close_if_settled(head & !LIST);
    }

    /// A sector surely holds one write.
    pub fn settle(&mut self, sector: u64, id: u32) {
        self.edit(sector, |entries| {
            entries.clear();
            entries.push(Entry::new(id));
        });
        self.heads[sector as usize] = id;
    }

    /// Works on all lists.
    pub fn edit_all(&mut self, mut work: impl FnMut(u64, &mut Vec<Entry>)) {
        for list in 0..self.lists.len() as u32 {
            let List { owner, entries } = &mut self.lists[list as usize];
            if *owner != NOBODY {
                work(*owner, entries);
                self.close_if_settled(list);
            }
        }
    }

    #[inline]
    fn close_if_settled(&mut self, list: u32) {
        let List { owner, entries } = &mut self.lists[list as usize];
        assert!(!entries.is_empty(), "sector {owner} must hold something");
        if entries.len() == 1 {
            self.heads[*owner as usize] = entries[0].id();
            *owner = NOBODY;
            entries.clear();
            self.free.push(list);
        }
    }
}
