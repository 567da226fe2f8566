"""The tables on a terminal, with textual."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.message import Message
from textual.widgets import Footer, Input, Static

from gateway.cli_support.event_stream import StreamLost
from gateway.cli_support.gateway_client import GatewayFailed
from gateway.tools.top.details import clock, lines_of, record_lines
from gateway.tools.top.dialogs import TextWindow, help_table, lines_text
from gateway.tools.top.live_fleet import LiveFleet
from gateway.tools.top.options import TopOptions
from gateway.tools.top.plain import chosen_rows, summary, warnings
from gateway.tools.top.source import FleetSource, News, PastRequests
from gateway.tools.top.table import LiveTable
from gateway.tools.top.view import KINDS, FleetRow, View
from gateway.tools.top.views import BY_NAME, VIEWS
from shared.process.excerpt import printable

MOST_WAITING = 4
"""Events that are read ahead of what is drawn. While a terminal takes nothing, the gateway drops frames, and
sends a snapshot when it goes on."""
LEFT_OUT_S = 5.0
"""While the gateway tells of some requests only, what waits and runs is asked for so often."""


class NewsArrived(Message):
    """The reader's thread has something."""

    def __init__(self, news: News) -> None:
        super().__init__()
        self.news = news


class TopApp(App[None]):
    """``trunkline top``."""

    TITLE = "trunkline top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: 1; background: $panel; color: $foreground; padding: 0 1; }
    #sums { height: auto; max-height: 2; padding: 0 1; }
    #trouble { height: auto; max-height: 3; padding: 0 1; color: $text-error; text-style: bold; }
    #tabs { height: 1; padding: 0 1; color: $text-muted; }
    #filter { height: 1; border: none; padding: 0 1; }
    """
    BINDINGS = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("enter", "choose", "Details", key_display="Enter"),
        Binding("question_mark,h", "explain", "Help", key_display="?"),
        Binding("q,ctrl+c", "quit", "Quit"),
        Binding("p,space", "pause", "Pause"),
        Binding("less_than_sign,left", "sort(-1)", "Sort", key_display="<>"),
        Binding("greater_than_sign,right", "sort(1)", "Sort", show=False),
        Binding("i", "invert", "Invert"),
        Binding("f", "kind", "Kind"),
        Binding("r", "requests", "Requests"),
        Binding("t", "colours", "Colours", show=False),
        Binding("tab", "next_view(1)", "Next", show=False, priority=True),
        Binding("shift+tab", "next_view(-1)", "Before", show=False, priority=True),
        Binding("escape", "clear", "Clear", show=False),
        *(
            Binding(str(n + 1), f"view('{each.name}')", each.title, show=False)
            for n, each in enumerate(VIEWS)
        ),
    ]

    def __init__(self, source: FleetSource, news: Iterator[News], options: TopOptions, name: str) -> None:
        """``news`` are the source's; a thread reads them from the app's beginning to its end."""
        super().__init__()
        self.fleet = LiveFleet()
        self.first: News | None = None
        """What was read already."""
        self._source, self._news, self._gateway = source, news, name
        self._view: View = BY_NAME[options.view]
        self._words, self._kind = options.words, options.kind.value
        self._sorts = {each.name: (each.sorted_by, each.column("").descending) for each in VIEWS}
        if options.sort:
            title = options.sort.removeprefix("-").upper()
            self._sorts[self._view.name] = (title, options.sort.startswith("-"))
        self._light = options.light
        self._paused = False
        self.lost: StreamLost | None = None
        """Why nothing is told just now; None: something is."""
        self.reader: threading.Thread | None = None
        self._again_s = 0.0
        self._asked_s = 0.0
        self._room = threading.BoundedSemaphore(MOST_WAITING)
        self._head = Static(id="head", markup=False)
        self._sums = Static(id="sums", markup=False)
        self._trouble = Static(id="trouble", markup=False)
        self._tabs = Static(id="tabs")
        self._table = LiveTable(id="table")
        self._filter = Input(id="filter", placeholder="words; column:word; !word", compact=True)

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._sums
        yield self._trouble
        yield self._tabs
        yield self._table
        yield self._filter
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.theme = "textual-light" if self._light else "textual-dark"
        self._filter.display = bool(self._words)
        self._filter.value = self._words
        self._trouble.display = False
        self._table.focus()
        if self.first is not None:
            self._take(self.first)
        self.set_interval(1.0, self._draw_head)
        self.reader = threading.Thread(target=self._read, name="events", daemon=True)
        self.reader.start()

    def on_unmount(self) -> None:
        self._source.stop()
        for _ in range(MOST_WAITING):  # the reader may wait for what is drawn no more
            with suppress(ValueError):
                self._room.release()

    # --- What the gateway tells ---

    def _read(self) -> None:
        """In a thread: hand on what is told."""
        for each in self._news:
            self._room.acquire()
            if not self.post_message(NewsArrived(each)):
                return

    def on_news_arrived(self, message: NewsArrived) -> None:
        with suppress(ValueError):  # the first one came another way
            self._room.release()
        self._take(message.news)

    def _take(self, news: News) -> None:
        if isinstance(news, StreamLost):
            self.lost, self._again_s = news, time.monotonic() + news.again_s
        elif isinstance(news, PastRequests):
            self.fleet.fill(news.requests, recent=news.kind == "recent")
        elif self.fleet.take(news.name, news.data):
            self.lost = None
        self._draw()
        if self.fleet.left_out and self._view.name == "requests":
            self._ask_for_live()

    def _ask_for_live(self) -> None:
        """What waits and runs, where not all of it was told."""
        now = time.monotonic()
        if now - self._asked_s >= LEFT_OUT_S:
            self._asked_s = now
            self.fleet.left_out = 0
            self.run_worker(self._replace_live(), exclusive=True)

    async def _replace_live(self) -> None:
        with suppress(GatewayFailed):
            self.fleet.requests.replace_live(await asyncio.to_thread(self._source.kept))
            self._draw()

    # --- Drawing ---

    def _draw(self) -> None:
        """What is shown, as of now; nothing new while it pauses."""
        self._draw_head()
        if self._paused or not self.fleet.state:
            return
        self._draw_table()

    def _draw_table(self) -> None:
        view = self._view
        title, descending = self._sorts[view.name]
        rows = chosen_rows(self.fleet, view, self._kind, self._words, title, descending)
        empty = f"No row holds these words: {self._words}" if self._words else view.empty
        self._table.show(view, rows, view.column(title), descending=descending, empty=empty)
        self._draw_tabs()

    def _draw_head(self) -> None:
        process = str(self.fleet.state.get("process", ""))
        state = "no connection" if self.lost is not None else "paused" if self._paused else "live"
        at = clock(self.fleet.at_s) if self.fleet.at_s else ""
        parts = [f"trunkline {printable(self._gateway)}", printable(process), state, at]
        self._set(self._head, "  ".join(filter(None, parts)))
        self._set(self._sums, ", ".join(summary(self.fleet)))
        said = [printable(each) for each in warnings(self.fleet)]
        if self.lost is not None:
            left_s = max(0, round(self._again_s - time.monotonic()))
            again = f"Asking again in {left_s} s" if left_s else "Asking again"
            why = printable(self.lost.why)
            why += "" if why.endswith("?") else "."
            said.insert(0, f"{why} {again}; what is shown is of {at}.")
        self._trouble.display = bool(said)
        self._set(self._trouble, "\n".join(said))

    def _set(self, line: Static, text: str) -> None:
        """Draw a line again only where it changed."""
        if str(line.content) != text:
            line.update(Text(text, no_wrap=line is self._head, overflow="ellipsis"))

    def _draw_tabs(self) -> None:
        names = []
        for number, each in enumerate(VIEWS):
            name = f"{number + 1} {each.title}"
            style = "reverse bold" if each is self._view else "not bold"
            names.append(f"[{style}][@click=app.view('{each.name}')] {name} [/][/]")
        first, last, count = self._table.visible_rows
        shown = f"{first}-{last} of {count}" if count else ""
        kind = f"  f: {self._kind}" if self._view.name == "requests" else ""
        text = "".join(names) + f"  {shown}{kind}"
        if str(self._tabs.content) != text:
            self._tabs.update(text)

    # --- What a user does ---

    def on_live_table_sort_asked(self, message: LiveTable.SortAsked) -> None:
        if self._sorts[self._view.name][0] == message.title:
            self.action_invert()
        else:
            self._sort_by(message.title)

    def on_live_table_moved(self, message: LiveTable.Moved) -> None:
        self._draw_tabs()

    def on_live_table_chosen(self, message: LiveTable.Chosen) -> None:
        row = message.row
        if self._view.name != "requests":
            self.push_screen(TextWindow(row.key, lines_text(lines_of(row, self._view))))
            return
        id_ = str(row.facts.get("id", ""))
        window = TextWindow(id_, Text("asking the gateway …"))
        self.push_screen(window)
        self.run_worker(self._tell_why(window, id_))

    async def _tell_why(self, window: TextWindow, id_: str) -> None:
        try:
            lines = record_lines(await asyncio.to_thread(self._source.record, id_))
        except GatewayFailed as error:
            lines = [str(error)]
        window.show(lines_text(lines))

    def on_input_changed(self, event: Input.Changed) -> None:
        self._words = event.value
        self._draw_table()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._filter.display = bool(self._words)
        self._table.focus()

    def action_choose(self) -> None:
        self._table.action_choose()

    def action_filter(self) -> None:
        self._filter.display = True
        self._filter.focus()

    def action_clear(self) -> None:
        self._filter.value = ""
        self._filter.display = False
        self._table.focus()

    def action_view(self, name: str) -> None:
        self._view = BY_NAME[name]
        self._draw_table()

    def action_next_view(self, step: int) -> None:
        self.action_view(VIEWS[(VIEWS.index(self._view) + step) % len(VIEWS)].name)

    def action_sort(self, step: int) -> None:
        shown, (title, _) = self._table.titles, self._sorts[self._view.name]
        index = shown.index(title) if title in shown else 0
        self._sort_by(shown[(index + step) % len(shown)])

    def _sort_by(self, title: str) -> None:
        self._sorts[self._view.name] = (title, self._view.column(title).descending)
        self._draw_table()

    def action_invert(self) -> None:
        title, descending = self._sorts[self._view.name]
        self._sorts[self._view.name] = (title, not descending)
        self._draw_table()

    def action_kind(self) -> None:
        if self._view.name == "requests":
            self._kind = KINDS[(KINDS.index(self._kind) + 1) % len(KINDS)]
        self.action_view("requests")

    def action_requests(self) -> None:
        """Those of the row."""
        row = self._table.cursor_row
        if row is None or self._view.name == "requests":
            self.action_view("requests")
            return
        self._filter.value = words_for(row, self._view)
        self._filter.display = True
        self.action_view("requests")

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._draw()

    def action_explain(self) -> None:
        self.push_screen(TextWindow("Keys and columns", help_table(self._view)))

    def action_colours(self) -> None:
        self.theme = "textual-dark" if self.theme == "textual-light" else "textual-light"
        self._draw_table()


def words_for(row: FleetRow, view: View) -> str:
    """The filter that shows the requests of a row."""
    if view.name == "models":
        return f"model:{row.key}"
    if view.name == "hosts":
        return f"host:{row.more[0]}"
    return f"host:{row.facts.get('agent', '')} model:{row.facts.get('model', '')}"
