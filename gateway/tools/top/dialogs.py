"""Windows over the tables: details of a row, and help."""

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from gateway.tools.top.view import View
from shared.process.excerpt import printable

KEYS = (
    ("1 2 3 4  Tab", "fleet, models, hosts, requests; the next table"),
    ("/", "filter: words that a row holds; column:word looks into one column, !word leaves out"),
    ("Esc", "take the filter away; close a window"),
    ("< >", "sort by the column to the left or right; a click on a title does it, too"),
    ("i", "the other order"),
    ("Enter", "details of the row; of a request, why it waited and why it went where it went"),
    ("r", "the requests of the row's model, host or deployment"),
    ("f", "of requests: all, waiting, running, slow, failed"),
    ("p  Space", "pause and go on; what happens meanwhile is not lost"),
    ("t", "colours for a dark or a light terminal"),
    ("↑ ↓ PgUp PgDn", "move; also k j, Ctrl+B Ctrl+F; Home End, g G"),
    ("q  Ctrl+C", "quit"),
)


class TextWindow(ModalScreen[None]):
    """Lines that can be scrolled; Escape, q and Enter close it."""

    DEFAULT_CSS = """
    TextWindow { align: center middle; }
    TextWindow > VerticalScroll {
        width: 92%; height: auto; max-height: 92%; max-width: 120;
        background: $surface; border: round $primary; padding: 0 1;
    }
    """
    BINDINGS = [("escape,q,enter", "dismiss", "Close")]

    def __init__(self, title: str, content: Text | Table) -> None:
        super().__init__()
        self._title = printable(title)
        self._content = Static(content, markup=False)

    def compose(self) -> ComposeResult:
        box = VerticalScroll(self._content)
        box.border_title = self._title.replace("[", "(").replace("]", ")")
        box.border_subtitle = "Esc closes"
        yield box

    def show(self, content: Text | Table) -> None:
        """Something else."""
        self._content.update(content)

    @property
    def shown(self) -> str:
        """The lines, as they are shown."""
        return str(self._content.content)


def lines_text(lines: Iterable[str]) -> Text:
    """What may come from elsewhere steers no terminal."""
    return Text("\n".join(printable(str(each)) for each in lines))


def help_table(view: View) -> Table:
    """The keys, and what the columns of a table mean."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for keys, meaning in KEYS:
        table.add_row(keys, meaning)
    table.add_row("", "")
    table.add_row("", f"Columns of {view.title}")
    for each in view.columns:
        if each.meaning:
            table.add_row(each.title, each.meaning)
    return table
