//! The states that a power cut may leave of several disks together.

use crate::disk::{DiskSnapshot, Luck};
use fastrand::Rng;
use std::rc::Rc;

/// A cut's luck with each disk.
pub(super) type Lucks = Vec<Luck>;

/// No version after the durable one is kept.
const NOTHING: Luck = Luck::UpTo(0);
/// Each block keeps its newest version.
const EVERYTHING: Luck = Luck::UpTo(usize::MAX);

/// The states that a cut may leave of the disks, and whether these are all.
///
/// All states are listed if they are at most `bound`. Otherwise a single disk gets the images that
/// [`DiskSnapshot::images`] draws. Several disks get these states: nothing kept, everything kept,
/// everything of one disk and nothing of the others, the reverse, and random combinations of the
/// images of each disk.
pub(super) fn subsets(
    disks: &[Rc<DiskSnapshot>],
    bound: usize,
    rng: &mut Rng,
) -> (bool, Vec<Lucks>) {
    if let Some(counts) = all(disks, bound as u64) {
        return (true, product(&counts));
    }
    let each: Vec<_> = disks.iter().map(|disk| disk.lucks(bound, rng)).collect();
    if let [one] = &each[..] {
        return (false, one.iter().map(|luck| vec![*luck]).collect());
    }
    let mut some = corners(disks.len());
    if some.len() > bound {
        rng.shuffle(&mut some);
        some.truncate(bound);
    }
    while some.len() < bound {
        some.push(
            each.iter().map(|lucks| lucks[rng.u64(0..lucks.len() as u64) as usize]).collect(),
        );
    }
    (false, some)
}

/// The number of images of each disk, if the combinations are at most `bound`.
fn all(disks: &[Rc<DiskSnapshot>], bound: u64) -> Option<Vec<u64>> {
    let counts: Vec<_> = disks.iter().map(|disk| disk.images_max(bound)).collect::<Option<_>>()?;
    let product = counts.iter().try_fold(1u64, |product, count| product.checked_mul(*count));
    product.filter(|product| *product <= bound).map(|_| counts)
}

/// Combines every image of each disk with every image of the others.
fn product(counts: &[u64]) -> Vec<Lucks> {
    let mut combinations = vec![vec![]];
    for count in counts {
        let with = |lucks: &Lucks| {
            let lucks = lucks.clone();
            (0..*count).map(move |number| [&lucks[..], &[Luck::Number(number)]].concat())
        };
        combinations = combinations.iter().flat_map(with).collect();
    }
    combinations
}

fn corners(disks: usize) -> Vec<Lucks> {
    let mut corners = vec![vec![NOTHING; disks], vec![EVERYTHING; disks]];
    for one in 0..disks {
        for (of_one, of_others) in [(EVERYTHING, NOTHING), (NOTHING, EVERYTHING)] {
            corners.push((0..disks).map(|n| if n == one { of_one } else { of_others }).collect());
        }
    }
    corners
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, DiskOp, DiskOptions};
    use std::collections::BTreeSet;

    /// A disk with so many blocks of one unflushed version each.
    fn disk(blocks: u64) -> Rc<DiskSnapshot> {
        let mut disk = Disk::new(DiskOptions::new(65536), 1);
        for block in 0..blocks {
            let data = vec![1; 512];
            let (id, _) = disk.begin(0, DiskOp::Write { offset: block * 512, data, fua: false });
            disk.finish(id);
        }
        Rc::new(disk.snapshot())
    }

    /// First bytes of the first blocks of the disks' images.
    fn images(disks: &[Rc<DiskSnapshot>], lucks: &[Lucks]) -> BTreeSet<Vec<u8>> {
        let mut rng = Rng::with_seed(3);
        let mut seen = BTreeSet::new();
        for lucks in lucks {
            let mut bytes = Vec::new();
            for (disk, luck) in disks.iter().zip(lucks) {
                let image = disk.image_of(&disk.kept(*luck, &mut rng), 0);
                bytes.extend((0..8).map(|block| image.contents()[block * 512]));
            }
            seen.insert(bytes);
        }
        seen
    }

    #[test]
    fn few_ways_are_all_tried() {
        let disks = [disk(2), disk(0), disk(3)];
        let (all, lucks) = subsets(&disks, 32, &mut Rng::with_seed(1));
        assert!(all);
        assert_eq!((lucks.len(), images(&disks, &lucks).len()), (32, 32));
    }

    #[test]
    fn of_many_ways_the_corners_and_some_are_tried() {
        let disks = [disk(6), disk(6), disk(6)];
        let (all, lucks) = subsets(&disks, 40, &mut Rng::with_seed(1));
        assert!(!all);
        assert_eq!(lucks.len(), 40);
        let corner = |kept: [u8; 3]| -> Vec<u8> {
            kept.iter().flat_map(|kept| [[*kept; 6].as_slice(), &[0; 2]].concat()).collect()
        };
        let seen = images(&disks, &lucks);
        for kept in [[0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 1, 1], [0, 1, 0], [0, 0, 1]] {
            assert!(seen.contains(&corner(kept)), "{kept:?}");
        }
        assert!(seen.len() > 30, "{} different ones", seen.len());
        assert_eq!(subsets(&disks[..1], 40, &mut Rng::with_seed(1)).1.len(), 40);
    }
}
