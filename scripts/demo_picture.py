#!/usr/bin/env python3
"""Draws terminal output, colours included, as an SVG picture: standard input to standard output."""

import re
import sys
from html import escape

SEQUENCE = re.compile(r"\033\[([0-9;]*)m")
OTHER_SEQUENCE = re.compile(r"\033(?:\[[0-9;?]*[A-Za-ln-z]|\][^\a]*\a)|\r")
BACKGROUND, TEXT, DIMMED = "#14181f", "#d8dee9", "#8b949e"
COLOURS = {
    31: "#ff7b72", 32: "#7ee787", 33: "#e3b341", 34: "#79c0ff", 35: "#d2a8ff", 36: "#76e3ea", 37: "#ffffff",
    90: "#8b949e", 91: "#ff7b72", 92: "#7ee787", 93: "#e3b341", 94: "#79c0ff", 95: "#d2a8ff", 96: "#76e3ea",
}
CHARACTER, LINE, MARGIN, SIZE = 8.43, 19, 22, 14


def restyled(style, codes):
    """The style after an escape sequence: (colour, bold, dim)."""
    colour, bold, dim = style
    for code in (int(code or 0) for code in codes.split(";")):
        if code == 0:
            colour, bold, dim = None, False, False
        elif code == 1:
            bold = True
        elif code == 2:
            dim = True
        elif code == 22:
            bold = dim = False
        elif code == 39:
            colour = None
        elif code in COLOURS:
            colour = COLOURS[code]
    return colour, bold, dim


def span(text, style):
    colour, bold, dim = style
    colour = colour or (DIMMED if dim else None)
    marks = f' fill="{colour}"' if colour else ""
    marks += ' font-weight="bold"' if bold else ""
    return f"<tspan{marks}>{escape(text)}</tspan>" if text else ""


def drawn(line, style):
    """One line as spans, and the style the next line starts with."""
    pieces = SEQUENCE.split(line)
    spans = [span(pieces[0], style)]
    for codes, text in zip(pieces[1::2], pieces[2::2]):
        style = restyled(style, codes)
        spans.append(span(text, style))
    return "".join(spans), style


def main():
    lines = OTHER_SEQUENCE.sub("", sys.stdin.read()).strip("\n").split("\n")
    columns = max(len(SEQUENCE.sub("", line)) for line in lines)
    width, height = columns * CHARACTER + 2 * MARGIN, len(lines) * LINE + 2 * MARGIN
    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" role="img" aria-label="Terminal output of make demo">\n'
        f'<rect width="100%" height="100%" rx="10" fill="{BACKGROUND}"/>\n'
        f'<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,\'DejaVu Sans Mono\',monospace" '
        f'font-size="{SIZE}" fill="{TEXT}">'
    )
    style = (None, False, False)
    for number, line in enumerate(lines):
        spans, style = drawn(line, style)
        print(f'<text x="{MARGIN}" y="{MARGIN + (number + 1) * LINE - 5}" xml:space="preserve">{spans}</text>')
    print("</g>\n</svg>")


if __name__ == "__main__":
    main()
