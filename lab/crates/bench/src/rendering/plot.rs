//! Renders plots as SVG without scripts or external content.

use std::fmt::Write;

pub(super) struct PlotSeries<'a> {
    /// Name of the series in the legend. Empty: the legend does not list the series.
    pub(super) name: &'a str,
    /// The points `(x, y)`, in the order of x.
    pub(super) points: Vec<(f64, f64)>,
    /// Whether the points are drawn as dots. Otherwise a line connects them.
    pub(super) is_scattered: bool,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum HorizontalAxis {
    /// Time since the start of the run, in seconds.
    Time,
    /// Shares from 0 to 1 on the scale `-log10(1 - share)`, on which the distance from 0.9 to 0.99 equals
    /// that from 0.99 to 0.999.
    Shares,
}

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 260.0;
const MARGIN_LEFT: f64 = 62.0;
const MARGIN_BOTTOM: f64 = 34.0;
const MARGIN_TOP: f64 = 30.0;
const MARGIN_RIGHT: f64 = 26.0;
const COLOURS: [&str; 4] = ["#1f6fb4", "#d9822b", "#3c8c4b", "#8e4bae"];
/// The shares that have a label on the axis, with their labels.
const LABELLED_SHARES: [(f64, &str); 6] = [
    (0.0, "0"),
    (0.5, "50 %"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (0.9999, "99.99 %"),
];

impl HorizontalAxis {
    /// Converts a value to its distance from the left end of the axis. The unit is arbitrary.
    fn scale(self, x: f64) -> f64 {
        match self {
            Self::Time => x,
            Self::Shares => -(1.0 - x).max(1e-5).log10(),
        }
    }
}

/// Renders a plot as SVG. The values must not be negative.
pub(super) fn plot(
    title: &str,
    unit: &str,
    axis: HorizontalAxis,
    lines: &[PlotSeries<'_>],
) -> String {
    let all_points = || lines.iter().flat_map(|line| &line.points);
    let right = all_points()
        .map(|(x, _)| axis.scale(*x))
        .fold(0.0, f64::max)
        .max(1e-9);
    let top = round_up_axis(all_points().map(|(_, y)| *y).fold(0.0, f64::max));
    let x_at = |x: f64| MARGIN_LEFT + axis.scale(x) / right * (WIDTH - MARGIN_LEFT - MARGIN_RIGHT);
    let y_at = |y: f64| HEIGHT - MARGIN_BOTTOM - y / top * (HEIGHT - MARGIN_BOTTOM - MARGIN_TOP);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\
         <text x=\"{MARGIN_LEFT}\" y=\"16\" class=\"title\">{title} ({unit})</text>"
    );
    draw_grid(&mut svg, top, y_at);
    for (x, name) in axis_ticks(axis, right) {
        // Writing to a string cannot fail.
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" class=\"across\">{name}</text>",
            x_at(x),
            HEIGHT - 14.0
        );
    }
    for (number, line) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let points = line.points.iter().map(|(x, y)| (x_at(*x), y_at(*y)));
        draw_series(&mut svg, points, line.is_scattered, colour);
        let legend_x = WIDTH - MARGIN_RIGHT - 110.0 * (lines.len() - number) as f64;
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"16\" style=\"fill:{colour}\" class=\"name\">{}</text>",
            legend_x + 110.0,
            line.name
        );
    }
    svg + "</svg>"
}

/// Draws five horizontal lines, from 0 to the value `top`, with their values as labels. `y_at`: converts a
/// value to its vertical position.
fn draw_grid(svg: &mut String, top: f64, y_at: impl Fn(f64) -> f64) {
    for step in 0..=4 {
        let value = top * f64::from(step) / 4.0;
        let y = y_at(value);
        let left = MARGIN_LEFT - 6.0;
        // Writing to a string cannot fail.
        let _ = write!(
            svg,
            "<line x1=\"{MARGIN_LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"grid\"/>\
             <text x=\"{left}\" y=\"{:.1}\" class=\"up\">{}</text>",
            WIDTH - MARGIN_RIGHT,
            y + 4.0,
            format_label(value)
        );
    }
}

fn draw_series(
    svg: &mut String,
    points: impl Iterator<Item = (f64, f64)>,
    is_scattered: bool,
    colour: &str,
) {
    if is_scattered {
        for (x, y) in points {
            let _ = write!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"1.6\" fill=\"{colour}\"/>"
            );
        }
        return;
    }
    let _ = write!(
        svg,
        "<polyline class=\"line\" stroke=\"{colour}\" points=\""
    );
    for (x, y) in points {
        let _ = write!(svg, "{x:.1},{y:.1} ");
    }
    svg.push_str("\"/>");
}

fn axis_ticks(axis: HorizontalAxis, right: f64) -> Vec<(f64, String)> {
    match axis {
        HorizontalAxis::Shares => {
            let ticks = LABELLED_SHARES
                .iter()
                .filter(|(share, _)| axis.scale(*share) <= right * 1.001);
            ticks
                .map(|(share, name)| (*share, (*name).to_owned()))
                .collect()
        }
        HorizontalAxis::Time => {
            let at = |step: u32| right * f64::from(step) / 4.0;
            (0..=4)
                .map(|step| (at(step), format!("{} s", format_label(at(step)))))
                .collect()
        }
    }
}

/// Rounds the maximum value up, for the end of an axis, to 1, 2, 4, 6, 8 or 10 times a power of ten.
fn round_up_axis(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let factors = [1.0, 2.0, 4.0, 6.0, 8.0, 10.0];
    factors
        .map(|factor| factor * power)
        .into_iter()
        .find(|bound| *bound >= value)
        .unwrap_or(value)
}

fn format_label(value: f64) -> String {
    if value.fract() < 1e-9 || value >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}
