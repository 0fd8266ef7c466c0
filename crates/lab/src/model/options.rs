//! The parameters of a model, as a user gives them.

/// The parameters of a model.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// Numbers of cores to model, ascending.
    pub cores: Vec<u32>,
    /// Runs of each measured point, in turns; at least 1.
    pub runs: u32,
    /// Time measured in each run, ns.
    pub runtime_ns: u64,
    /// The most threads of the measured points.
    pub threads: u32,
}

/// The most cores that can be modelled.
pub const CORES_MAX: u32 = 256;

/// The numbers of cores in a text: `1..128` are the first, the last, and the powers of two between
/// them; `2,24,96` are these three.
///
/// # Errors
/// A sentence, when the text gives no numbers.
pub fn parse_cores(text: &str) -> Result<Vec<u32>, String> {
    let number = |part: &str| match part.trim().parse::<u32>() {
        Ok(number) if (1..=CORES_MAX).contains(&number) => Ok(number),
        _ => Err(format!(
            "`{part}` is no number of cores from 1 to {CORES_MAX}: write 1..128, or 2,24,96"
        )),
    };
    let mut cores = match text.split_once("..") {
        None => text.split(',').map(number).collect::<Result<Vec<u32>, String>>()?,
        Some((first, last)) => {
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(format!("{first}..{last} goes down: write {last}..{first}"));
            }
            let powers = (0..u32::BITS).map(|n| 1 << n).filter(|n| (first..=last).contains(n));
            powers.chain([first, last]).collect()
        }
    };
    cores.sort_unstable();
    cores.dedup();
    Ok(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_ranges_or_lists() {
        assert_eq!(parse_cores("1..128"), Ok(vec![1, 2, 4, 8, 16, 32, 64, 128]));
        assert_eq!(parse_cores("3..24"), Ok(vec![3, 4, 8, 16, 24]));
        assert_eq!(parse_cores("96, 2,2"), Ok(vec![2, 96]));
        assert_eq!(parse_cores("7"), Ok(vec![7]));
        for bad in ["", "0", "257", "x", "1..", "..4", "1,,2", "1..2..3", "-1"] {
            assert!(parse_cores(bad).is_err_and(|text| text.contains("1..128")), "{bad}");
        }
        assert_eq!(parse_cores("8..2"), Err("8..2 goes down: write 2..8".to_owned()));
    }
}
