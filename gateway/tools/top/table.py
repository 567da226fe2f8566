"""A table of which only the visible lines are made, so that thousands of rows cost what a screenful costs."""

from collections.abc import Sequence
from typing import Any

from rich.segment import Segment
from textual.binding import Binding
from textual.events import Click, MouseScrollDown, MouseScrollUp, Resize
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gateway.tools.top.columns import GAP, Placed, fitted, place
from gateway.tools.top.view import FleetColumn, FleetRow, View

TONES = ("good", "warn", "bad", "dim", "bar")


class LiveTable(Widget):
    """Shows rows in the order in which they come. The cursor stays with its row, wherever that goes; at the
    top it stays at the top."""

    COMPONENT_CLASSES = {
        *(f"live-table--{each}" for each in TONES),
        "live-table--header",
        "live-table--sorted",
        "live-table--cursor",
        "live-table--empty",
    }
    DEFAULT_CSS = """
    LiveTable { height: 1fr; }
    LiveTable .live-table--header { text-style: bold; background: $panel; color: $foreground; }
    LiveTable .live-table--sorted { text-style: bold reverse; background: $panel; color: $foreground; }
    LiveTable .live-table--cursor { background: $primary; color: $text; text-style: bold; }
    LiveTable .live-table--good { color: $text-success; }
    LiveTable .live-table--warn { color: $text-warning; }
    LiveTable .live-table--bad { color: $text-error; text-style: bold; }
    LiveTable .live-table--dim { color: $text-muted; }
    LiveTable .live-table--bar { color: $primary; }
    LiveTable .live-table--empty { color: $text-muted; }
    """
    BINDINGS = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False),
        Binding("home,g", "move(-1000000000)", "Top", show=False),
        Binding("end,G", "move(1000000000)", "Bottom", show=False),
    ]

    class Chosen(Message):
        """A row was chosen."""

        def __init__(self, row: FleetRow) -> None:
            super().__init__()
            self.row = row

    class SortAsked(Message):
        """A column's title was clicked."""

        def __init__(self, title: str) -> None:
            super().__init__()
            self.title = title

    class Moved(Message):
        """Other rows are visible now."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.can_focus = True
        self._view: View | None = None
        self._rows: Sequence[FleetRow] = ()
        self._column: FleetColumn | None = None
        self._descending = False
        self._cursor = self._first = 0
        self._cursor_key = ""
        self._empty = ""
        self._placed: list[Placed[FleetRow]] = []
        self._strips: list[Strip] = []

    # --- What it shows ---

    def show(
        self, view: View, rows: Sequence[FleetRow], column: FleetColumn, *, descending: bool, empty: str
    ) -> None:
        """These rows, sorted by ``column``; ``empty`` is said where there are none. Lines that have not
        changed are not drawn again."""
        if view is not self._view:
            self._view, self._cursor, self._first = view, 0, 0
        elif self._cursor and self._cursor_key:
            keys = [each.key for each in rows]
            if self._cursor_key in keys:
                moved = keys.index(self._cursor_key) - self._cursor
                self._cursor += moved
        self._rows, self._column, self._descending, self._empty = rows, column, descending, empty
        self._draw()

    @property
    def cursor_row(self) -> FleetRow | None:
        """The row under the cursor."""
        return self._rows[self._cursor] if self._cursor < len(self._rows) else None

    @property
    def visible_rows(self) -> tuple[int, int, int]:
        """The first and the last visible row, counted from 1, and how many there are."""
        last = min(len(self._rows), self._first + self._height)
        return (min(self._first + 1, last), last, len(self._rows))

    def line(self, y: int) -> str:
        """The text of a line."""
        return self._strips[y].text if y < len(self._strips) else ""

    @property
    def titles(self) -> list[str]:
        """Of the columns that are shown."""
        return [each.column.title for each in self._placed]

    # --- Drawing ---

    @property
    def _height(self) -> int:
        """Lines for rows."""
        return max(1, int(self.size.height) - 1)

    def _draw(self) -> None:
        """Make the visible lines, and have those drawn that differ."""
        width, height = self.size
        if self._view is None or self._column is None or not width:  # before it has a place and styles
            return
        self._cursor = max(0, min(self._cursor, len(self._rows) - 1))
        row = self.cursor_row
        self._cursor_key = "" if row is None else row.key
        self._first = max(0, min(self._first, len(self._rows) - self._height))
        self._first = min(self._cursor, max(self._first, self._cursor - self._height + 1))
        self._placed = place(self._view.columns, width, self._column.title)
        shown = self._rows[self._first : self._first + self._height]
        strips = [self._header(width), *(self._row_strip(n, each, width) for n, each in enumerate(shown))]
        if not shown:
            strips += self._empty_strips(width)
        strips = strips[:height]
        for y in range(max(len(strips), len(self._strips))):
            old = self._strips[y] if y < len(self._strips) else None
            if (strips[y] if y < len(strips) else None) != old:
                self.refresh(Region(0, y, width, 1))
        self._strips = strips

    def _header(self, width: int) -> Strip:
        assert self._column is not None
        plain = self.get_component_rich_style("live-table--header")
        sorted_style = self.get_component_rich_style("live-table--sorted")
        segments: list[Segment] = []
        for each in self._placed:
            column = each.column
            is_sorted = column.title == self._column.title
            title = column.title
            if is_sorted and len(title) < each.width:
                title += "▼" if self._descending else "▲"
            text = fitted(title, each.width, right=column.right)
            segments += [Segment(text, sorted_style if is_sorted else plain), Segment(" " * GAP, plain)]
        return Strip(segments).adjust_cell_length(width, plain).simplify()

    def _row_strip(self, index: int, row: FleetRow, width: int) -> Strip:
        base = self.rich_style
        chosen = self._first + index == self._cursor
        if chosen:
            base = self.get_component_rich_style("live-table--cursor")
        segments: list[Segment] = []
        for each in self._placed:
            tone = each.column.tone(row)
            style = base
            if tone and not chosen:
                style = self.get_component_rich_style(f"live-table--{tone}")
            segments += [Segment(each.cell(row), style), Segment(" " * GAP, base)]
        return Strip(segments).adjust_cell_length(width, base).simplify()

    def _empty_strips(self, width: int) -> list[Strip]:
        style = self.get_component_rich_style("live-table--empty")
        lines, line = [""], ""
        for word in self._empty.split():
            if line and len(line) + 1 + len(word) > width - 2:
                lines.append(line)
                line = ""
            line = f"{line} {word}".strip()
        lines.append(line)
        return [Strip([Segment(f" {each}", style)]).adjust_cell_length(width, style) for each in lines]

    def render_line(self, y: int) -> Strip:
        if y < len(self._strips):
            return self._strips[y]
        return Strip.blank(self.size.width, self.rich_style)

    # --- What a user does ---

    def on_resize(self, event: Resize) -> None:
        self._strips = []
        self._draw()
        self.refresh()
        self.post_message(self.Moved())

    def notify_style_update(self) -> None:
        """Another theme."""
        super().notify_style_update()
        self._strips = []
        self._draw()

    def action_move(self, rows: int) -> None:
        self._cursor += rows
        self._draw()
        self.post_message(self.Moved())

    def action_page(self, pages: int) -> None:
        self._first += pages * self._height
        self.action_move(pages * self._height)

    def action_choose(self) -> None:
        row = self.cursor_row
        if row is not None:
            self.post_message(self.Chosen(row))

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self._scroll(3)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self._scroll(-3)

    def _scroll(self, rows: int) -> None:
        """Move what is visible; the cursor stays in it."""
        self._first = max(0, min(self._first + rows, len(self._rows) - self._height))
        self._cursor = max(self._first, min(self._cursor, self._first + self._height - 1))
        self._draw()
        self.post_message(self.Moved())

    def on_click(self, event: Click) -> None:
        """On a title: sort by it. On a row: the cursor goes there; a second time: choose it."""
        if event.y == 0:
            left = 0
            for each in self._placed:
                left += each.width + GAP
                if event.x < left:
                    self.post_message(self.SortAsked(each.column.title))
                    return
            return
        index = self._first + event.y - 1
        if index < len(self._rows):
            again = index == self._cursor and event.chain > 1
            self._cursor = index
            self._draw()
            if again:
                self.action_choose()
