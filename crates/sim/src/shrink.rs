//! Makes a failure smaller: finds few I/Os of a seed with which the seed still fails.
//!
//! Delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input",
//! 2002): leave out ever smaller parts of the I/Os and keep each set that still fails. An I/O that
//! is left out changes the order of everything after it. So the smaller set may fail in another
//! way, but it is a failure too.

use crate::order::Keep;

/// The highest number that an I/O can have.
const NUMBER_MAX: u64 = 1 << 24;
/// The most runs that one search may take.
const RUNS_MAX: u32 = 400;

/// The smallest set of the I/Os `1..=ios` found that still fails; `fails` tries one set.
pub fn shrink(ios: u64, mut fails: impl FnMut(&Keep) -> bool) -> Keep {
    let mut kept: Vec<u64> = (1..=ios).collect();
    let (mut parts, mut runs) = (2, 0);
    while kept.len() > 1 && runs < RUNS_MAX {
        let size = kept.len().div_ceil(parts);
        let smaller = (0..kept.len()).step_by(size).find_map(|at| {
            runs += 1;
            let without: Vec<u64> = without(&kept, at, size);
            let keep: Keep = without.iter().copied().collect();
            (runs <= RUNS_MAX && fails(&keep)).then_some(without)
        });
        match smaller {
            Some(smaller) => {
                kept = smaller;
                parts = (parts - 1).max(2);
            }
            None if size == 1 => break,
            None => parts = (parts * 2).min(kept.len()),
        }
    }
    kept.into_iter().collect()
}

fn without(all: &[u64], at: usize, size: usize) -> Vec<u64> {
    let left_out = at..at + size;
    let kept = all.iter().enumerate().filter(|(n, _)| !left_out.contains(n));
    kept.map(|(_, number)| *number).collect()
}

/// The numbers as text: `3,7-9`.
pub fn text_of(keep: &Keep) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for number in keep {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let text = |(first, last): &(u64, u64)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

/// The numbers that a text names.
///
/// # Errors
/// A sentence on the fault of the text.
pub fn parse(text: &str) -> Result<Keep, String> {
    let wrong = || {
        let most = NUMBER_MAX;
        format!("`{text}` is no list of I/Os up to {most}: write numbers and ranges, as 3,7-9")
    };
    let mut keep = Keep::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong());
        let (first, last) = (number(first)?, number(last)?);
        if first > last || last > NUMBER_MAX {
            return Err(wrong());
        }
        keep.extend(first..=last);
    }
    Ok(keep)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guilty_ones_are_found() {
        let guilty: Keep = [17, 400, 1999].into();
        let mut runs = 0;
        let smallest = shrink(2000, |keep| {
            runs += 1;
            guilty.is_subset(keep)
        });
        assert_eq!(smallest, guilty);
        assert!(runs <= RUNS_MAX);
        assert_eq!(shrink(5, |_| false), (1..=5).collect());
    }

    #[test]
    fn lists_are_read_as_they_are_written() {
        let keep: Keep = [3, 7, 8, 9, 11].into();
        assert_eq!(text_of(&keep), "3,7-9,11");
        assert_eq!(parse("3,7-9,11"), Ok(keep));
        for text in ["", "x", "3-", "9-7", "1-99999999999"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
