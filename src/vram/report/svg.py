"""``vram why`` as a picture: the very text of the terminal, drawn as SVG."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO

from rich.console import Console, RenderableType
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from vram.report.layout import RenderOptions

WIDTH = 100
FONTS = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'

_NORMAL = ((72, 79, 88), (248, 113, 105), (126, 188, 121), (224, 175, 95), (98, 146, 214))
_BRIGHT = ((125, 133, 144), (255, 140, 130), (150, 210, 145), (240, 195, 120), (125, 170, 235))
_CALM = TerminalTheme(
    (16, 20, 26),
    (201, 209, 217),
    [*_NORMAL, (190, 140, 226), (86, 182, 194), (201, 209, 217)],
    [*_BRIGHT, (210, 165, 240), (110, 205, 215), (240, 246, 252)],
)

# Rich's own frame asks a foreign server for its font, which README pages refuse, and draws the
# buttons of a window that is not there. Every run of text carries its length, so any
# monospaced font keeps the columns.
_FRAME = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
    <style>
    .{unique_id}-matrix {{
        font-family: {fonts};
        font-size: {char_height}px;
        line-height: {line_height}px;
    }}
    {styles}
    </style>
    <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
    </clipPath>
    {lines}
    </defs>
    <rect fill="#10141a" width="{width}" height="{height}" rx="10" />
    <g transform="translate(20, 24)" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">
    {matrix}
    </g>
    </g>
</svg>
"""


def draw(render: Callable[[RenderOptions], RenderableType], *, prompt: str, width: int = WIDTH) -> str:
    """Return an SVG document of *prompt* and of what *render* gives for so wide a terminal."""
    console = Console(
        # Two columns of margin: fonts differ a little in width, and nothing may be cut off.
        width=width + 2,
        file=StringIO(),
        record=True,
        force_terminal=True,
        color_system="truecolor",
        markup=False,
        highlight=False,
        emoji=False,
    )
    console.print(Text.assemble(("$ ", "green"), (prompt, "bold")))
    console.print(render(RenderOptions(width=width, painted=True, colored=True)))
    return console.export_svg(title=prompt, theme=_CALM, code_format=_FRAME.replace("{fonts}", FONTS))
