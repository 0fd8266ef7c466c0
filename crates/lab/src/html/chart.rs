//! Charts as SVG: bars with their spread, and lines over the number of threads.

use std::fmt::Write;

use crate::outcome::{Curve, Plot, threads_text};
use crate::row::{Row, spread};

use super::escape::escape;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 30.0;
/// Height of a line of the legend.
const LEGEND: f64 = 18.0;
/// Colours that the page's style has.
const COLOURS: usize = 8;

fn of<'a>(rows: &[&'a Row], name: &str, threads: u32) -> Option<(&'a Row, (f64, f64, f64))> {
    let row = rows.iter().find(|row| row.threads == threads && row.name() == name)?;
    Some((row, spread(row.rate()?.1)?))
}

fn greatest(rows: &[&Row]) -> f64 {
    let values = rows.iter().filter_map(|row| row.rate()).filter_map(|rate| spread(rate.1));
    values.map(|(_, _, most)| most).fold(1.0, f64::max)
}

/// An axis to `most`: its greatest value, a round number, and the step.
fn axis(most: f64) -> (f64, f64) {
    let step = 10f64.powf(most.log10().floor());
    let step = [0.2, 0.5, 1.0, 2.0].map(|part| part * step);
    let step = step.into_iter().find(|step| most / step <= 6.0).unwrap_or(step[3]);
    ((most / step).ceil() * step, step)
}

fn y(value: f64, most: f64) -> f64 {
    HEIGHT - BOTTOM - value / most * (HEIGHT - BOTTOM - TOP)
}

fn short(iops: f64) -> String {
    match iops {
        0.0 => "0".to_owned(),
        iops if iops >= 1e6 => format!("{}M", (iops / 1e4).round() / 100.0),
        iops if iops >= 1e3 => format!("{}K", (iops / 10.0).round() / 100.0),
        iops => format!("{}", (iops * 100.0).round() / 100.0),
    }
}

/// The frame: lines with their values, and the legend below; then whatever `body` draws.
fn chart(most: f64, names: &[String], body: impl FnOnce(&mut String, f64)) -> String {
    let (most, step) = axis(most);
    let height = HEIGHT + LEGEND * names.len() as f64;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n");
    let mut value = 0.0;
    while value <= most * 1.001 {
        let at = y(value, most);
        let _ = writeln!(
            svg,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0,
            short(value)
        );
        value += step;
    }
    body(&mut svg, most);
    for (number, name) in names.iter().enumerate() {
        let at = HEIGHT + LEGEND * number as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{LEFT}\" y=\"{at}\" width=\"12\" height=\"12\" fill=\"{}\"/>\
             <text x=\"{}\" y=\"{}\">{}</text>",
            colour(number),
            LEFT + 20.0,
            at + 10.5,
            escape(name)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn colour(number: usize) -> String {
    format!("var(--c{})", number % COLOURS)
}

fn below(svg: &mut String, x: f64, text: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>",
        HEIGHT - 10.0,
    );
}

/// A group of bars for each number of threads.
pub fn bars(rows: &[&Row], names: &[String], threads: &[u32]) -> String {
    let shown: Vec<&Row> =
        rows.iter().copied().filter(|row| threads.contains(&row.threads)).collect();
    chart(greatest(&shown), names, |svg, most| {
        let group = (WIDTH - LEFT - RIGHT) / threads.len() as f64;
        let each = group / (names.len() as f64 + 1.0);
        for (number, threads) in threads.iter().enumerate() {
            let left = LEFT + group * number as f64 + each / 2.0;
            below(svg, left + (group - each) / 2.0, &threads_text(*threads));
            for (place, name) in names.iter().enumerate() {
                if let Some((_, values)) = of(&shown, name, *threads) {
                    bar(svg, (left + each * place as f64, each * 0.8), values, most, place);
                }
            }
        }
    })
}

fn bar(
    svg: &mut String,
    (x, width): (f64, f64),
    values: (f64, f64, f64),
    most: f64,
    number: usize,
) {
    let (low, top, high) = (y(values.0, most), y(values.1, most), y(values.2, most));
    let middle = x + width / 2.0;
    let _ = writeln!(
        svg,
        "<rect class=\"bar\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\" \
         fill=\"{}\"/>\
         <path class=\"spread\" d=\"M{middle:.1} {low:.1}V{high:.1}\"/>",
        y(0.0, most) - top,
        colour(number)
    );
}

/// A line for each variant; each doubling of the threads takes the same width.
pub fn lines(rows: &[&Row], names: &[String], threads: &[u32]) -> String {
    let end = f64::from(threads.last().copied().unwrap_or(1).max(2)).log2();
    let x = |threads: u32| {
        LEFT + 40.0 + f64::from(threads).log2() / end * (WIDTH - LEFT - RIGHT - 80.0)
    };
    chart(greatest(rows), names, |svg, most| {
        threads.iter().for_each(|threads| below(svg, x(*threads), &threads_text(*threads)));
        for (number, name) in names.iter().enumerate() {
            let found = threads.iter().filter_map(|threads| of(rows, name, *threads));
            let points: Vec<(f64, f64)> =
                found.map(|(row, (_, median, _))| (x(row.threads), y(median, most))).collect();
            let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let (colour, path) = (colour(number), path.join(" "));
            let _ = writeln!(
                svg,
                "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
            );
            for (x, y) in points {
                let _ = writeln!(
                    svg,
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
                );
            }
        }
    })
}

/// Rates over time: the achieved rate as a solid line, the requested one dashed, in the same
/// colour.
pub fn over_time(plot: &Plot) -> String {
    let points = || plot.curves.iter().flat_map(|curve| curve.asked.iter().chain(&curve.given));
    let most = points().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let end = points().map(|(at, _)| *at).fold(0.0, f64::max);
    if most <= 0.0 || end <= 0.0 {
        return "<p>Nothing was measured.</p>\n".to_owned();
    }
    let name = |curve: &Curve| format!("{} (dashed: what was asked)", curve.name);
    let names: Vec<String> = plot.curves.iter().map(name).collect();
    chart(most, &names, |svg, most| {
        let x = |at: f64| LEFT + at / end * (WIDTH - LEFT - RIGHT - 20.0);
        for part in 0..=4 {
            let at = end * f64::from(part) / 4.0;
            below(svg, x(at), &format!("{at:.*} s", if end < 4.0 { 2 } else { 1 }));
        }
        for (number, curve) in plot.curves.iter().enumerate() {
            for (points, class) in [(&curve.asked, "asked"), (&curve.given, "given")] {
                let points = points.iter().map(|(at, rate)| (x(*at), y(*rate, most)));
                let path: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
                let _ = writeln!(
                    svg,
                    "<polyline class=\"{class}\" points=\"{}\" fill=\"none\" stroke=\"{}\"/>",
                    path.join(" "),
                    colour(number)
                );
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_values() {
        let row = |iops: f64| Row {
            device: "d",
            variant: "ours",
            note: None,
            threads: 1,
            labels: Vec::new(),
            measured: vec![("iops", vec![iops])],
            locks: Vec::new(),
        };
        for (most, end, step) in [(879e3, 1e6, 2e5), (2867e3, 3e6, 5e5), (21e6, 2.5e7, 5e6)] {
            let (got_end, got_step) = axis(greatest(&[&row(most)]));
            assert!((got_end / end - 1.0).abs() < 1e-9, "{most}: {got_end}");
            assert!((got_step / step - 1.0).abs() < 1e-9, "{most}: {got_step}");
        }
        assert_eq!(axis(greatest(&[])), (1.0, 0.2));
        assert_eq!([0.0, 500_000.0, 2.5e6].map(short), ["0", "500K", "2.5M"]);
    }
}
