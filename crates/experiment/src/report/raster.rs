//! Our own pictures as PNG. It reads the few elements that [`super::chart`] writes and no other SVG.

use tiny_skia::{
    Color, FillRule, Paint, Path, PathBuilder, Pixmap, Rect, Shader, Stroke, Transform,
};
use ttf_parser::{Face, OutlineBuilder};

/// Dots for each unit of the picture: crisp on screens with many of them, and in print.
const SCALE: f32 = 2.0;
/// Latin letters of DejaVu Sans, without hints: 20 kB.
const FONT: &[u8] = include_bytes!("../../data/font/DejaVuSans-subset.ttf");

/// The picture as a PNG file; none if it is not one of ours.
#[must_use]
pub fn png(svg: &str) -> Option<Vec<u8>> {
    let face = Face::parse(FONT, 0).ok()?;
    let root = Tag::all(svg).find(|tag| tag.name == "svg")?;
    let (width, height) = (root.number("width")?, root.number("height")?);
    let mut canvas = Pixmap::new(
        (width * SCALE).round().clamp(1.0, 10_000.0) as u32,
        (height * SCALE).round().clamp(1.0, 10_000.0) as u32,
    )?;
    canvas.fill(Color::WHITE);
    let ink = root.colour("fill", 1.0);
    for tag in Tag::all(svg) {
        match tag.name {
            "rect" => rectangle(&mut canvas, &tag),
            "line" => line(&mut canvas, &tag),
            "path" => curve(&mut canvas, &tag),
            "text" => write(&mut canvas, &tag, &face, ink),
            _ => Some(()),
        };
    }
    canvas.encode_png().ok()
}

/// An element: its name, its attributes, and the text after it.
struct Tag<'a> {
    name: &'a str,
    attributes: &'a str,
    text: &'a str,
}

impl<'a> Tag<'a> {
    fn all(svg: &'a str) -> impl Iterator<Item = Tag<'a>> {
        svg.split('<').skip(1).filter_map(|part| {
            let (inside, text) = part.split_once('>')?;
            let inside = inside.trim_end_matches('/');
            let end = inside.find(' ').unwrap_or(inside.len());
            Some(Tag {
                name: &inside[..end],
                attributes: &inside[end..],
                text,
            })
        })
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        let begin = format!(" {key}=\"");
        let from = self.attributes.find(&begin)? + begin.len();
        let value = &self.attributes[from..];
        value.split('"').next()
    }

    fn number(&self, key: &str) -> Option<f32> {
        self.get(key)?.parse().ok()
    }

    fn colour(&self, key: &str, opacity: f32) -> Option<Color> {
        let digits = self.get(key)?.strip_prefix('#')?;
        let rgb = u32::from_str_radix(digits, 16).ok()?;
        let part = |shift: u32| ((rgb >> shift) & 0xff) as f32 / 255.0;
        Color::from_rgba(part(16), part(8), part(0), opacity)
    }
}

fn paint(colour: Color) -> Paint<'static> {
    Paint {
        shader: Shader::SolidColor(colour),
        anti_alias: true,
        ..Paint::default()
    }
}

fn scaled() -> Transform {
    Transform::from_scale(SCALE, SCALE)
}

fn fill(canvas: &mut Pixmap, path: &Path, colour: Color, at: Transform) {
    canvas.fill_path(path, &paint(colour), FillRule::Winding, at, None);
}

fn draw(canvas: &mut Pixmap, path: &Path, tag: &Tag<'_>) -> Option<()> {
    let stroke = Stroke {
        width: tag.number("stroke-width").unwrap_or(1.0),
        ..Stroke::default()
    };
    let colour = tag.colour("stroke", 1.0)?;
    canvas.stroke_path(path, &paint(colour), &stroke, scaled(), None);
    Some(())
}

fn rectangle(canvas: &mut Pixmap, tag: &Tag<'_>) -> Option<()> {
    let (x, y) = (
        tag.number("x").unwrap_or(0.0),
        tag.number("y").unwrap_or(0.0),
    );
    let area = Rect::from_xywh(x, y, tag.number("width")?, tag.number("height")?)?;
    let path = PathBuilder::from_rect(area);
    if let Some(colour) = tag.colour("fill", 1.0) {
        fill(canvas, &path, colour, scaled());
    }
    draw(canvas, &path, tag)
}

fn line(canvas: &mut Pixmap, tag: &Tag<'_>) -> Option<()> {
    let mut path = PathBuilder::new();
    path.move_to(tag.number("x1")?, tag.number("y1")?);
    path.line_to(tag.number("x2")?, tag.number("y2")?);
    draw(canvas, &path.finish()?, tag)
}

fn curve(canvas: &mut Pixmap, tag: &Tag<'_>) -> Option<()> {
    let path = outline(tag.get("d")?)?;
    let opacity = tag.number("fill-opacity").unwrap_or(1.0);
    if let Some(colour) = tag.colour("fill", opacity) {
        fill(canvas, &path, colour, scaled());
    }
    draw(canvas, &path, tag)
}

/// A path of moves, lines, vertical lines and closings.
fn outline(description: &str) -> Option<Path> {
    let mut path = PathBuilder::new();
    let mut x = 0.0;
    let mut rest = description;
    while let Some(act) = rest.chars().next() {
        rest = &rest[act.len_utf8()..];
        let end = rest
            .find(|c: char| c.is_ascii_alphabetic())
            .unwrap_or(rest.len());
        let mut numbers = rest[..end].split_whitespace().map(str::parse::<f32>);
        rest = &rest[end..];
        let mut next = || numbers.next()?.ok();
        match act {
            'M' => {
                x = next()?;
                path.move_to(x, next()?);
            }
            'L' => {
                x = next()?;
                path.line_to(x, next()?);
            }
            'V' => path.line_to(x, next()?),
            'Z' => path.close(),
            _ => return None,
        }
    }
    path.finish()
}

fn write(canvas: &mut Pixmap, tag: &Tag<'_>, face: &Face<'_>, ink: Option<Color>) -> Option<()> {
    let size = tag.number("font-size").unwrap_or(12.0);
    let scale = size / f32::from(face.units_per_em());
    let text = unescaped(tag.text);
    let glyphs = || text.chars().filter_map(|c| face.glyph_index(c));
    let advance = |glyph| f32::from(face.glyph_hor_advance(glyph).unwrap_or(0)) * scale;
    let width: f32 = glyphs().map(advance).sum();
    let mut pen = Pen {
        path: PathBuilder::new(),
        scale,
        x: match tag.get("text-anchor") {
            Some("middle") => -width / 2.0,
            Some("end") => -width,
            _ => 0.0,
        },
    };
    for glyph in glyphs() {
        let _ = face.outline_glyph(glyph, &mut pen);
        pen.x += advance(glyph);
    }
    let path = pen.path.finish()?;
    let colour = tag.colour("fill", 1.0).or(ink)?;
    let at = match tag.get("transform") {
        // The name of a vertical axis: it reads upwards.
        Some(place) => {
            let inside = place.strip_prefix("translate(")?.split(')').next()?;
            let (x, y) = inside.split_once(' ')?;
            Transform::from_rotate(-90.0).post_translate(x.parse().ok()?, y.parse().ok()?)
        }
        None => Transform::from_translate(tag.number("x")?, tag.number("y")?),
    }
    .post_scale(SCALE, SCALE);
    fill(canvas, &path, colour, at);
    if tag.get("font-weight").is_some() {
        // One weight is shipped; the outline makes it bold.
        let stroke = Stroke {
            width: size * 0.05,
            ..Stroke::default()
        };
        canvas.stroke_path(&path, &paint(colour), &stroke, at, None);
    }
    Some(())
}

/// The text of [`super::escaped`], as it was.
fn unescaped(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&#39;", "'")
        .replace("&amp;", "&")
}

/// Puts glyphs side by side. A font's vertical axis points up, a picture's down.
struct Pen {
    path: PathBuilder,
    scale: f32,
    x: f32,
}

impl Pen {
    fn at(&self, x: f32, y: f32) -> (f32, f32) {
        (self.x + x * self.scale, -y * self.scale)
    }
}

impl OutlineBuilder for Pen {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.at(x1, y1), self.at(x, y));
        self.path.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ((x1, y1), (x2, y2), (x, y)) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        self.path.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.path.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::chart::{COLOURS, Chart};

    #[test]
    fn a_picture_has_its_marks_where_they_were_drawn() {
        let mut chart = Chart::new("A & B", (0.0, 1.0), (0.0, 1.0), ("x", "y"), &[]);
        chart.line(&[(0.0, 0.5), (1.0, 0.5)], COLOURS[0]);
        let (x, y) = (chart.at_x(0.3), chart.at_y(0.5));
        let file = png(&chart.finish()).expect("one of ours");
        let picture = Pixmap::decode_png(&file).expect("a PNG");
        assert_eq!((picture.width(), picture.height()), (1280, 720));
        let seen = picture
            .pixel((x * 2.0) as u32, (y * 2.0) as u32)
            .expect("within");
        assert_eq!((seen.red(), seen.green(), seen.blue()), (0x00, 0x72, 0xb2));
        // The title is there, and nothing above it.
        let is_inked =
            |row: u32| (0..400).any(|x| picture.pixel(x, row).is_some_and(|p| p.red() < 128));
        assert!((20..44).any(is_inked) && !(0..16).any(is_inked));
    }

    #[test]
    fn what_is_not_ours_is_no_picture() {
        for text in [
            "",
            "<svg>",
            "<svg width=\"a\" height=\"2\">",
            "<html></html>",
        ] {
            assert_eq!(png(text), None, "{text}");
        }
        assert!(outline("M1 2C3 4").is_none());
    }
}
