//! Axes and marks of a chart.

use std::fmt::Write;

use super::{escaped, shown};

pub(super) const WIDTH: f64 = 640.0;
pub(super) const HEIGHT: f64 = 360.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 48.0;
const ROW: f64 = 17.0;

/// Colours that people who see few colours can tell apart (Okabe and Ito).
pub(super) const COLOURS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
];
pub(super) const INK: &str = "#1f2933";
pub(super) const FAINT: &str = "#d9dee4";

/// A drawing in progress.
pub(super) struct Chart {
    svg: String,
    x: (f64, f64),
    y: (f64, f64),
}

impl Chart {
    /// An empty drawing with a title.
    pub(super) fn blank(title: &str, height: f64) -> Self {
        let mut svg = String::new();
        let _ = write!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
             font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"{INK}\"><title>{title}</title>\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\
             <text x=\"16\" y=\"22\" font-size=\"14\" font-weight=\"600\">{title}</text>",
            title = escaped(title)
        );
        Self {
            svg,
            x: (0.0, 1.0),
            y: (0.0, 1.0),
        }
    }

    /// A chart with two axes.
    pub(super) fn new(
        title: &str,
        x: (f64, f64),
        y: (f64, f64),
        labels: (&str, &str),
        legend: &[(String, &str)],
    ) -> Self {
        // Names of lines stand below the axes: they may be long.
        let mut chart = Self::blank(title, HEIGHT + ROW * legend.len() as f64);
        chart.legend(legend);
        chart.x = widened(x);
        chart.y = widened(y);
        for tick in ticks(chart.y) {
            let at = chart.at_y(tick);
            let _ = write!(
                chart.svg,
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"{FAINT}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 8.0,
                at + 4.0,
                shown(tick)
            );
        }
        for tick in ticks(chart.x) {
            let at = chart.at_x(tick);
            let _ = write!(
                chart.svg,
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{0}\" y2=\"{1}\" stroke=\"{INK}\"/>\
                 <text x=\"{at:.1}\" y=\"{2}\" text-anchor=\"middle\">{3}</text>",
                HEIGHT - BOTTOM,
                HEIGHT - BOTTOM + 5.0,
                HEIGHT - BOTTOM + 19.0,
                shown(tick)
            );
        }
        let _ = write!(
            chart.svg,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{1}\" y2=\"{1}\" stroke=\"{INK}\"/>\
             <text x=\"{2}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>\
             <text transform=\"translate(16 {5}) rotate(-90)\" text-anchor=\"middle\">{6}</text>",
            WIDTH - RIGHT,
            HEIGHT - BOTTOM,
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 10.0,
            escaped(labels.0),
            (TOP + HEIGHT - BOTTOM) / 2.0,
            escaped(labels.1)
        );
        chart
    }

    pub(super) fn at_x(&self, value: f64) -> f64 {
        LEFT + (value - self.x.0) / (self.x.1 - self.x.0) * (WIDTH - LEFT - RIGHT)
    }

    pub(super) fn at_y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - (value - self.y.0) / (self.y.1 - self.y.0) * (HEIGHT - TOP - BOTTOM)
    }

    pub(super) fn line(&mut self, points: &[(f64, f64)], colour: &str) {
        let path = self.path(points.iter().copied());
        let _ = write!(
            self.svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        );
    }

    /// The area between two lines.
    pub(super) fn band(&mut self, low: &[(f64, f64)], high: &[(f64, f64)], colour: &str) {
        let path = self.path(low.iter().copied().chain(high.iter().rev().copied()));
        let _ = write!(
            self.svg,
            "<path d=\"{path}Z\" fill=\"{colour}\" fill-opacity=\"0.18\"/>"
        );
    }

    pub(super) fn raw(&mut self, marks: &str) {
        self.svg.push_str(marks);
    }

    fn legend(&mut self, names: &[(String, &str)]) {
        for (at, (name, colour)) in names.iter().enumerate() {
            let y = HEIGHT + 6.0 + ROW * at as f64;
            let _ = write!(
                self.svg,
                "<rect x=\"{LEFT}\" y=\"{0}\" width=\"14\" height=\"10\" fill=\"{colour}\"/>\
                 <text x=\"{1}\" y=\"{y}\">{2}</text>",
                y - 9.0,
                LEFT + 22.0,
                escaped(name)
            );
        }
    }

    pub(super) fn finish(mut self) -> String {
        self.svg.push_str("</svg>");
        self.svg
    }

    fn path(&self, points: impl Iterator<Item = (f64, f64)>) -> String {
        let mut path = String::new();
        for (at, (x, y)) in points.enumerate() {
            let _ = write!(
                path,
                "{}{:.1} {:.1}",
                if at == 0 { "M" } else { "L" },
                self.at_x(x),
                self.at_y(y)
            );
        }
        path
    }
}

fn widened((from, to): (f64, f64)) -> (f64, f64) {
    if to > from {
        (from, to)
    } else {
        (from, from + 1.0)
    }
}

/// Round numbers within a range, about five of them.
fn ticks((from, to): (f64, f64)) -> Vec<f64> {
    let raw = (to - from) / 5.0;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .iter()
        .map(|factor| factor * power)
        .find(|step| *step >= raw)
        .unwrap_or(raw);
    let first = (from / step).ceil() as i64;
    (first..)
        .map(|at| at as f64 * step)
        .take_while(|tick| *tick <= to + step * 1e-9)
        .take(20)
        .collect()
}
