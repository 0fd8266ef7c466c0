//! The command line of `drystone-sim`: what it refuses, in any build.

use std::process::{Command, Output};

use clap::{CommandFactory as _, Parser as _};
use drystone_sim::cli::Cli;

fn sim(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_drystone-sim")).args(words).output().unwrap()
}

#[test]
fn scenarios_and_mistakes_are_listed() {
    let output = sim(&["--list"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for scenario in drystone_sim::runner::SCENARIOS {
        assert!(text.contains(&format!("\n  {} ", scenario.name)), "{text}");
    }
    assert!(text.contains("Mistakes for --break:"), "{text}");
}

#[test]
fn options_without_an_effect_are_refused() {
    for (words, named) in [
        (&["--seed", "1", "--jobs", "2"][..], "--jobs"),
        (&["--list", "--seed", "1"], "--list"),
        (&["--list", "--break", "completion_lost"], "--list"),
        (&["--runs", "1", "--minutes", "1"], "--minutes"),
        (&["--trace"], "--seed"),
    ] {
        let output = sim(words);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {told}");
        assert!(told.contains(named), "{words:?}: {told}");
    }
}

/// clap forgets an option's `requires` where that conflicts with something that was given.
#[test]
fn what_is_for_one_seed_asks_for_it_whatever_else_is_given() {
    let others = ["--runs=1", "--minutes=1", "--scenario=raid", "--jobs=2", "--no-shrink"];
    for option in ["--trace", "--trace-all", "--keep=1"] {
        for other in others {
            let line = ["drystone-sim", option, other];
            assert!(Cli::try_parse_from(line).is_err(), "{line:?} needs --seed");
        }
    }
}

#[test]
fn help_has_no_line_of_more_than_100_columns() {
    Cli::command().debug_assert();
    let help = Cli::command().render_long_help().to_string();
    assert!(help.contains("Usage: drystone sim "), "{help}");
    assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
}
