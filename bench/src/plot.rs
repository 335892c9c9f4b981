//! Draws lines in SVG, on logarithmic axes.

use std::fmt::Write as _;

use crate::figures::digits;

/// A named line.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Lines under a title.
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) lines: Vec<Line>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 420.0;
/// Margins: the axis labels, the names of the lines, the title, the numbers of clients.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 40.0;
/// The least distance between names of lines.
const APART: f64 = 15.0;
/// The first is Ringfence's. They differ in lightness as well as in hue (Okabe and Ito's colours, and greys).
const COLOURS: [&str; 10] = [
    "#d55e00", "#0072b2", "#56b4e9", "#004d73", "#8fc6e8", "#009e73", "#cc79a7", "#8c3b68", "#e69f00",
    "#888888",
];

/// Draws all panels side by side.
pub(crate) fn svg(panels: &[Panel]) -> String {
    let width = WIDTH * panels.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{width}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    for (place, panel) in panels.iter().enumerate() {
        let _ = write!(svg, "<g transform=\"translate({} 0)\">\n{}</g>\n", WIDTH * place as f64, panel.svg());
    }
    svg + "</svg>\n"
}

impl Panel {
    fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let (across, up) = (Axis::of(points().map(|point| point.0)), Axis::of(points().map(|point| point.1)));
        let x = |value: f64| LEFT + across.place(value) * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| HEIGHT - BOTTOM - up.place(value) * (HEIGHT - TOP - BOTTOM);
        let mut svg =
            format!("<text x=\"{LEFT}\" y=\"24\" font-weight=\"bold\">{}</text>\n", escaped(&self.title));
        for decade in up.decades() {
            let (y, end) = (y(decade), WIDTH - RIGHT);
            let _ = writeln!(svg, "<path d=\"M{LEFT} {y:.1}H{end}\" stroke=\"#ddd\"/>");
            let (x, y, text) = (LEFT - 6.0, y + 4.0, digits(decade));
            let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{text}</text>");
        }
        let mut clients: Vec<f64> = points().map(|point| point.0).collect();
        clients.sort_by(f64::total_cmp);
        clients.dedup();
        for clients in clients {
            let (x, y, text) = (x(clients), HEIGHT - BOTTOM + 18.0, digits(clients));
            let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{text}</text>");
        }
        let (middle, bottom) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 6.0);
        let _ = writeln!(svg, "<text x=\"{middle}\" y=\"{bottom}\" text-anchor=\"middle\">clients</text>");
        let colours = || self.lines.iter().zip(COLOURS.iter().cycle());
        let mut names = Vec::new();
        for (place, (line, colour)) in colours().enumerate() {
            let path: String =
                line.points.iter().map(|point| format!(" {:.1},{:.1}", x(point.0), y(point.1))).collect();
            let thick = if place == 0 { 3 } else { 2 };
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{thick}\"/>",
                path.trim_start()
            );
            names.extend(line.points.last().map(|last| (y(last.1), &line.name, colour)));
        }
        names.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut lowest = f64::NEG_INFINITY;
        for (y, name, colour) in names {
            lowest = y.max(lowest + APART);
            let (x, y, name) = (WIDTH - RIGHT + 8.0, lowest + 4.0, escaped(name));
            let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y:.1}\" fill=\"{colour}\">{name}</text>");
        }
        svg
    }
}

/// From one power of ten to another.
struct Axis {
    from: f64,
    to: f64,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let positive = values.filter(|value| *value > 0.0).map(f64::log10);
        let (least, most) = (positive.clone().fold(f64::MAX, f64::min), positive.fold(f64::MIN, f64::max));
        match least <= most {
            true => Self { from: least.floor(), to: most.ceil().max(least.floor() + 1.0) },
            false => Self { from: 0.0, to: 1.0 },
        }
    }

    /// From 0 to 1; values that are not positive are at the lower end.
    fn place(&self, value: f64) -> f64 {
        let power = if value > 0.0 { value.log10() } else { self.from };
        (power - self.from) / (self.to - self.from)
    }

    fn decades(&self) -> impl Iterator<Item = f64> {
        (self.from as i32..=self.to as i32).map(|power| 10_f64.powi(power))
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_from_left_to_right_and_names_do_not_overlap() {
        let line =
            |name: &str, most: f64| Line { name: name.into(), points: vec![(1.0, 10.0), (100.0, most)] };
        let lines = vec![line("a<b", 1_000.0), line("c", 999.0), line("d", 10.0)];
        let svg = svg(&[Panel { title: "per s".into(), lines }]);
        assert!(svg.contains("points=\"70.0,380.0 490.0,40.0\""), "{svg}");
        assert!(svg.contains("a&lt;b"), "{svg}");
        let named: Vec<f64> = svg
            .lines()
            .filter(|line| line.contains("fill=\"#"))
            .filter_map(|line| line.split("y=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert_eq!(named.len(), 3);
        assert!(named.windows(2).all(|pair| pair[0] + APART <= pair[1]), "{named:?}");
    }
}
