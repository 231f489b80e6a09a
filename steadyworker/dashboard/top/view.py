"""
The view of `steadyworker top`: tabs, a table with a cursor, keys, and questions.

Each reading and each action runs on a daemon thread, so a ledger or a broker that does not respond stops neither a key nor the end.
Every text of others reaches the terminal as `rich.text.Text` without control characters, never as markup.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar, TypeVar

from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option
from typing_extensions import override

from steadyworker.config.resolve import Options
from steadyworker.dashboard.reader import Reader, ReadPage
from steadyworker.dashboard.top.orders import Obeyed, Order, fitting, obey
from steadyworker.dashboard.top.tables import Tab, TopTable, Value, read_table, row_id, story_of
from steadyworker.errors import SteadyWorkerError
from steadyworker.text.plain_text import plain_text, printable
from steadyworker.units import count_text, span

REFRESH = 2.0
MOST_BY_YES = 50
"""The largest number of rows that a yes confirms; for more of them, the person types their number."""

_GOES_ON = "An action goes on: wait for its result."
_MARGIN = 3  # the mark of a selected row, and the scrollbar
_NAMED = 3
HELP = """\
tab, shift+tab, ← →, 1 to 5   another table
↑ ↓, j k, h l, home, end      another row; h and l move by a page
enter                         the story of a job; what the row needs
/                             only rows with a text; empty: all rows
x, A                          select a row; select all rows, or none
p                             stop and resume the refresh, which is each 2 s
?, q                          this help; quit, or close a window, as esc does

With --allow-actions, on the selected rows, or on the row of the cursor:
c, r                          cancel jobs, with a reason; make waiting jobs due now
P                             pause queues, or end their pause

Each action asks first, and stands in the log of actions."""

Result = TypeVar("Result")


class CallEnded(Message):
    """The end of a call on another thread; `then` shows the result."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self.then = then


class TextWindow(ModalScreen[None]):
    """A window with a long text: the story of a job, or the help."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "dismiss"),
        *(Binding(f"{key},{arrow}", f"scroll('{arrow}')") for key, arrow in (("j", "down"), ("k", "up"))),
        *(
            Binding(f"{key},{page}", f"scroll('{way}')")
            for key, page, way in (("l", "pagedown", "page_down"), ("h", "pageup", "page_up"))
        ),
    ]
    DEFAULT_CSS = "TextWindow { align: center middle; } TextWindow VerticalScroll { height: 100%; }"

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__()
        self._lines = lines

    @override
    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            yield Static(Text("\n".join(map(printable, self._lines))), markup=False)

    def action_scroll(self, way: str) -> None:
        """Scroll the text."""
        getattr(self.query_one(VerticalScroll), f"scroll_{way}")(animate=False)


class Question(ModalScreen[list[str] | None]):
    """A question with one line for each answer; enter on the last line ends it, and esc gives None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss")]
    DEFAULT_CSS = "Question { align: center bottom; } Question Vertical { height: auto; border-top: solid; }"

    def __init__(self, question: str, answers: Sequence[str], given: str = "") -> None:
        super().__init__()
        self._question, self._answers, self._given = question, answers, given

    @override
    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text(printable(self._question)), markup=False)
            for answer in self._answers:
                yield Static(Text(f"{answer} (enter; esc ends this):"), markup=False)
                yield Input(self._given, select_on_focus=False, compact=True)

    @on(Input.Submitted)
    def next_answer(self, event: Input.Submitted) -> None:
        """Go to the next line, or return the answers."""
        lines = list(self.query(Input))
        if event.input is lines[-1]:
            self.dismiss([line.value.strip() for line in lines])
        else:
            self.focus_next(Input)


class Tables(Screen[None]):
    """The tables; `reading` is true while a call to the ledger goes on, and `acting` is the thread of an action that goes on."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"tab({number - 1})") for number, _ in enumerate(Tab, 1)),
        Binding("tab,right", "next_tab(1)"),
        Binding("shift+tab,left", "next_tab(-1)"),
        *(
            Binding(key, f"move('{way}')")
            for key, way in zip("jkhl", ("cursor_down", "cursor_up", "page_up", "page_down"), strict=True)
        ),
        Binding("x", "select"),
        Binding("A", "select_all"),
        Binding("slash", "ask_filter"),
        Binding("p", "hold"),
        Binding("q", "leave"),
        Binding("question_mark", "help"),
        *(Binding(key, f"order('{order.name}')") for key, order in zip("crP", Order, strict=True)),
    ]
    DEFAULT_CSS = """
    Tables Static { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    Tables #problem { height: auto; max-height: 4; text-wrap: wrap; }
    Tables OptionList, Tables OptionList:focus { height: 1fr; border: none; padding: 0; text-wrap: nowrap; text-overflow: ellipsis; }
    Tables OptionList > .option-list--option-highlighted { text-style: reverse; }
    """

    def __init__(self, reader: Reader, options: Options, *, allow_actions: bool) -> None:
        super().__init__()
        self._reader, self._options, self._allowed = reader, options, allow_actions
        self._tab, self._filter, self._held = Tab.RUNNING, "", False
        self._page: ReadPage[TopTable] | None = None
        self._shown: tuple[Tab, str] | None = None
        self._problem, self._notice = "", ""
        self._selected: set[Hashable] = set()
        self._ids: Sequence[Hashable] = ()
        self.acting: threading.Thread | None = None
        self._again = self.reading = False

    @override
    def compose(self) -> ComposeResult:
        yield Static(id="tabs", markup=False)
        yield Static(id="headline", markup=False)
        yield Static(id="titles", markup=False)
        yield OptionList(markup=False)
        yield Static(id="problem", markup=False)
        yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        """Read the first table, and then one each 2 s."""
        self.query_one(OptionList).focus()
        self._show()
        self.set_interval(REFRESH, self._tick)
        self.refresh_table()

    def on_resize(self) -> None:
        """Draw the table in the new width."""
        self._show()

    def _tick(self) -> None:
        self._show()  # the age of what is shown
        if not self._held:
            self.refresh_table()

    def refresh_table(self) -> None:
        """Read the table of this tab; if a reading goes on, read again after it."""
        if self.reading:
            self._again = True
            return
        self.reading, self._again = True, False
        wanted = self._tab, self._filter
        read = partial(read_table, tab=self._tab, namespace=self._options.namespace, text=self._filter)
        self._call(lambda: self._reader.page(wanted, read), partial(self._read, wanted))

    def _call(self, work: Callable[[], Result], then: Callable[[Result | str], None]) -> threading.Thread:
        """Call a function on another thread, and then `then` on this one, with the result or the text of an error."""

        def run() -> None:
            found: Result | str
            try:
                found = work()
            except SteadyWorkerError as error:
                found = plain_text(str(error))
            except Exception as error:  # noqa: BLE001 - the person must see it, and the view must go on
                found = plain_text(error)
            with suppress(RuntimeError):  # the view has ended
                self.post_message(CallEnded(partial(then, found)))

        thread = threading.Thread(target=run, name="steadyworker-top", daemon=True)
        thread.start()
        return thread

    def on_call_ended(self, event: CallEnded) -> None:
        """Show the result of a call."""
        event.then()

    def _read(self, wanted: tuple[Tab, str], found: ReadPage[TopTable] | str) -> None:
        self.reading = False
        if wanted == (self._tab, self._filter):
            if isinstance(found, str):
                self._problem = found
            else:
                self._page, self._problem = found, found.problem
                self._selected &= {row_id(row) for row in found.content.rows}
            self._show()
        if self._again:
            self.refresh_table()

    @property
    def _rows(self) -> Sequence[Value]:
        return self._page.content.rows if self._page is not None else ()

    def _show(self) -> None:
        """Draw everything; the cursor stays on its row."""
        tabs = [
            Text(f" {number} {tab.value.capitalize()} ", "reverse bold" if tab is self._tab else "")
            for number, tab in enumerate(Tab, 1)
        ]
        self._put("tabs", Text(" ").join(tabs))
        width = max(20, self.size.width - _MARGIN)
        found = [] if self._page is None else list(self._page.content.lines(width))
        titles, *lines = found or [Text()]
        self._put("titles", Text("  ").append_text(titles))
        self._list(lines)
        parts = [
            self._page.content.headline if self._page is not None else "" if self._problem else "reading…",
            f"{len(self._selected):,} selected" if self._selected else "",
            f"only with {self._filter!r}" if self._filter else "",
            "the refresh is stopped: p resumes it" if self._held else "",
        ]
        self._put("headline", Text(printable("; ".join(part for part in parts if part))))
        age = span(max(0.0, self._reader.now() - self._page.at)) if self._page is not None else ""
        old = f"These rows are {age} old: " if age else ""
        notes = [f"{old}{self._problem}" if self._problem else "", self._notice]
        notes += self._page.content.notes if self._page is not None else []
        problem = self.query_one("#problem", Static)
        problem.update(
            Text("\n".join(printable(note) for note in notes if note), "bold red" if self._problem else "yellow")
        )
        problem.display = any(notes)
        actions = "  c cancel  r retry now  P pause" if self._allowed else ""
        self._put("keys", Text(f"? help  q quit  p stop  / filter  enter story  x select{actions}", "dim"))

    def _list(self, lines: Sequence[Text]) -> None:
        table, rows = self.query_one(OptionList), self._rows
        ids = [row_id(row) for row in rows]
        here = table.highlighted
        at = self._ids[here] if here is not None else None
        marked = [
            Text("* " if id in self._selected else "  ").append_text(line) for id, line in zip(ids, lines, strict=True)
        ]
        table.set_options([Option(line) for line in marked])
        self._ids = ids
        if ids:
            same = self._shown == (self._tab, self._filter)
            table.highlighted = ids.index(at) if at in ids else min(here or 0, len(ids) - 1) if same else 0
        self._shown = self._tab, self._filter

    def _put(self, name: str, text: Text) -> None:
        self.query_one(f"#{name}", Static).update(text)

    def _current(self) -> Value | None:
        at = self.query_one(OptionList).highlighted
        return None if at is None or at >= len(self._rows) else self._rows[at]

    def _chosen(self) -> Sequence[Value]:
        """Return the selected rows, or the row of the cursor if none is selected."""
        chosen = [row for row in self._rows if row_id(row) in self._selected]
        current = self._current()
        return chosen or ([] if current is None else [current])

    def _goto(self, tab: Tab, text: str) -> None:
        self._tab, self._filter, self._page, self._problem, self._notice = tab, text, None, "", ""
        self._selected.clear()
        self._show()
        self.refresh_table()

    def action_tab(self, number: int) -> None:
        """Show the table of this number."""
        self._goto(list(Tab)[number], "")

    def action_next_tab(self, step: int) -> None:
        """Show the table beside this one."""
        tabs = list(Tab)
        self._goto(tabs[(tabs.index(self._tab) + step) % len(tabs)], "")

    def action_move(self, way: str) -> None:
        """Move the cursor."""
        getattr(self.query_one(OptionList), f"action_{way}")()

    def action_select(self) -> None:
        """Select the row of the cursor, or end its selection, and go to the next row."""
        if (row := self._current()) is not None:
            self._selected ^= {row_id(row)}
            self._show()
            if self._current() is not self._rows[-1]:
                self.action_move("cursor_down")

    def action_select_all(self) -> None:
        """Select all rows, or none if all are selected."""
        every = {row_id(row) for row in self._rows}
        self._selected = set() if every <= self._selected else every
        self._show()

    def action_hold(self) -> None:
        """Stop or resume the refresh."""
        self._held = not self._held
        self._tick()

    def action_leave(self) -> None:
        """End the view, but not in the middle of an action."""
        if self.acting is not None:
            self._report(_GOES_ON)
        else:
            self.app.exit()

    def action_help(self) -> None:
        """Show the keys."""
        self.app.push_screen(TextWindow(HELP.splitlines()))

    def action_ask_filter(self) -> None:
        """Ask for the text of the filter."""

        def then(answers: list[str] | None) -> None:
            if answers is not None:
                self._goto(self._tab, answers[0])

        self.app.push_screen(Question("Only rows with this text, or jobs of this queue", ["text"], self._filter), then)

    @on(OptionList.OptionSelected)
    def story(self) -> None:
        """Show the whole text of the row of the cursor."""
        if (row := self._current()) is None:
            return
        read = partial(story_of, row=row, width=max(20, self.size.width - 2))
        self._call(lambda: self._reader.page(("story", row_id(row), self.size.width), read), self._show_story)

    def _show_story(self, found: ReadPage[list[str]] | str) -> None:
        old = isinstance(found, ReadPage) and found.problem
        lines = (
            [found]
            if isinstance(found, str)
            else [*([f"{span(found.age)} old: {old}", ""] if old else []), *found.content]
        )
        self.app.push_screen(TextWindow(lines))

    def action_order(self, name: str) -> None:
        """Ask whether to do an action, and then do it."""
        order = Order[name]
        rows = fitting(order, self._chosen())
        if not self._allowed:
            self._report("Expected --allow-actions for an action, got none: start `steadyworker top --allow-actions`.")
        elif self.acting is not None:
            self._report(_GOES_ON)
        elif not rows:
            self._report(
                f"Expected {'queues' if order is Order.PAUSE else 'jobs'} for this action, got none: select some in their table."
            )
        else:
            yes = "yes" if len(rows) <= MOST_BY_YES else str(len(rows))
            named = ", ".join(str(getattr(row, "queue", None) or row.row.id.key) for row in rows[:_NAMED])  # type: ignore[union-attr]
            more = f" and {len(rows) - _NAMED:,} more" if len(rows) > _NAMED else ""
            question = (
                f"{order.value} {count_text(len(rows), 'queue' if order is Order.PAUSE else 'job')}: {named}{more}?"
            )
            answers = [*(["reason"] if order is not Order.RETRY else []), f"type {yes} to go on"]
            self.app.push_screen(Question(question, answers), partial(self._confirmed, order, rows, yes))

    def _confirmed(self, order: Order, rows: Sequence[Value], yes: str, answers: list[str] | None) -> None:
        if answers is None or answers[-1] != yes:
            self._report("Nothing was changed.")
            return
        self._report(f"{order.value}: goes on…")
        reason = answers[0] if len(answers) > 1 else ""
        self.acting = self._call(lambda: obey(self._options, order, rows, reason), self._obeyed)

    def _obeyed(self, found: Obeyed | str) -> None:
        self.acting = None
        if isinstance(found, Obeyed):
            self._selected -= {*found.changed}  # what was not changed stays selected
            found = "; ".join(found.texts)
        self._report(plain_text(found))
        self.refresh_table()

    def _report(self, text: str) -> None:
        self._notice = text
        self._show()


class TopApp(App[None]):
    """The view in a terminal, in the terminal's own colours."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", priority=True)]

    def __init__(self, reader: Reader, options: Options, *, allow_actions: bool = False) -> None:
        super().__init__(ansi_color=True)
        self.tables = Tables(reader, options, allow_actions=allow_actions)

    @override
    def get_default_screen(self) -> Screen[None]:
        return self.tables
