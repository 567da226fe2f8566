"""Rectangles and lines of text, written as SVG or as PNG.

Both are written here rather than by a plotting library: a bar chart is all there is to draw, and the gateway
would carry numpy and more for it. PNG text is in capitals, of a font of 5 by 7 dots.
"""

import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_SCALE = 2
"""Pixels of a PNG for one of the drawing's, and for one dot of its font."""
_ADVANCE = 6
_FONT_HEIGHT = 7
_WHITE = (255, 255, 255)

# Seven rows of five dots each, a row being a digit of base 32.
_GLYPHS = dict(
    re.findall(
        r"(\S)=(\w{7})",
        "A=ehhvhhh B=uhhuhhu C=ehggghe D=uhhhhhu E=vgguggv F=vgguggg G=ehgnhhe H=hhhvhhh I=e44444e "
        "J=72222ic K=hikokih L=ggggggv M=hrllhhh N=hhpljhh O=ehhhhhe P=uhhuggg Q=ehhhlid R=uhhukih "
        "S=fgge11u T=v444444 U=hhhhhhe V=hhhhha4 W=hhhllla X=hha4ahh Y=hha4444 Z=v1248gv 0=ehjlphe "
        "1=4c4444e 2=eh1248v 3=v2421he 4=26aiv22 5=vgu11he 6=68guhhe 7=v124888 8=ehhehhe 9=ehhf12c "
        "-=000v000 .=00000cc ,=0000c48 %=op248j3 /=01248g0 (=2488842 )=8422248 @=eh1dlle *=04lel40 "
        ":=0cc0cc0 <=248g842 >=8421248 +=044v440 _=000000v ==00v0v00",
    )
) | {" ": "0000000"}
_UNKNOWN = "vhhhhhv"


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle; ``label`` is shown when it is pointed at."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text with its baseline at ``y``; it ends at ``x`` if ``end``, else begins there."""

    x: float
    y: float
    text: str
    colour: str = "#111827"
    end: bool = False
    bold: bool = False


@dataclass(frozen=True, slots=True)
class Drawing:
    """On white; later parts cover earlier ones."""

    width: int
    height: int
    parts: Sequence[Box | Text]


def svg_of(drawing: Drawing) -> str:
    size = f'viewBox="0 0 {drawing.width} {drawing.height}" width="{drawing.width}" height="{drawing.height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif" font-size="13">'
    ]
    lines.append(f'<rect width="{drawing.width}" height="{drawing.height}" fill="#ffffff"/>')
    for part in drawing.parts:
        lines.append(_svg_box(part) if isinstance(part, Box) else _svg_text(part))
    return "\n".join([*lines, "</svg>", ""])


def _svg_box(box: Box) -> str:
    place = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
    return f'<rect {place} fill="{box.colour}"><title>{escape(box.label)}</title></rect>'


def _svg_text(text: Text) -> str:
    more = (' text-anchor="end"' if text.end else "") + (' font-weight="600"' if text.bold else "")
    return f'<text x="{text.x:.1f}" y="{text.y:.1f}" fill="{text.colour}"{more}>{escape(text.text)}</text>'


def png_of(drawing: Drawing) -> bytes:
    width, height = drawing.width * _SCALE, drawing.height * _SCALE
    rows = [bytearray(bytes(_WHITE) * width) for _ in range(height)]
    for part in drawing.parts:
        if isinstance(part, Box):
            _fill(rows, part.x, part.y, part.width, part.height, part.colour)
        else:
            _write(rows, part)
    data = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _write(rows: list[bytearray], text: Text) -> None:
    dot, letters = 1.0, text.text.upper()
    left = text.x - (len(letters) * _ADVANCE * dot if text.end else 0.0)
    for place, letter in enumerate(letters):
        for row, digit in enumerate(_GLYPHS.get(letter, _UNKNOWN)):
            bits = int(digit, 32)
            for column in range(5):
                if bits >> (4 - column) & 1:
                    x = left + (place * _ADVANCE + column) * dot
                    wide = dot + 0.5 if text.bold else dot
                    _fill(rows, x, text.y - _FONT_HEIGHT + row, wide, dot, text.colour)


def _fill(rows: list[bytearray], x: float, y: float, width: float, height: float, colour: str) -> None:
    """Whole pixels, cut off at the edges."""
    top, bottom = max(0, round(y * _SCALE)), min(len(rows), round((y + height) * _SCALE))
    left, right = max(0, round(x * _SCALE)), min(len(rows[0]) // 3, round((x + width) * _SCALE))
    pixels = bytes.fromhex(colour.removeprefix("#")) * max(0, right - left)
    for row in rows[top:bottom]:
        row[left * 3 : left * 3 + len(pixels)] = pixels
