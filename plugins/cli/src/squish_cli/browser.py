"""The program of `squish browse`, with Textual: a tree of tensors, and what is known of the selected one.

Text is laid out for the width of its pane by the functions that the commands use, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

from rich.text import Text
from squish_convert.compare.diff import compare
from squish_convert.lineage import lineage, lineage_lines
from squish_convert.places import grouped, layer_of, layer_order, total
from squish_convert.statistics import LOWEST, Statistics
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Footer, Input, Static, Tree

from squish_core.display import fit_all
from squish_core.errors import SquishError
from squish_core.file import File
from squish_core.summary import abbreviate, stored_as
from squish_core.tensor import Tensor
from squish_core.text import counted, escape, format_bytes

MOST_FOUND = 2000
"""Tensors that a search lists."""
BAR = 14
"""Characters of the longest bar, which fits beside another file's in 80 columns."""
READS = "s reads its values"
HELP = """Keys

up, down    choose a tensor; enter or right opens a layer
/           search: words that names or types contain
t           the tensor: shape, storage, parts
s           read its values: statistics and a histogram
p           what would run it, and why
m           metadata
f           the file
d           difference of the tensor in two files
escape      leave the search
tab         go to the text, to scroll it
q           quit"""


class Browser(App[None]):
    """A tree of tensors on the left, text on the right."""

    CSS = """
    #tree { width: 38%; min-width: 26; border-right: solid $primary; }
    #title { height: 1; text-style: bold; }
    #pane { padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "search", key_display="/"),
        Binding("t", "view('tensor')", "tensor"),
        Binding("s", "view('statistics')", "values"),
        Binding("p", "view('plan')", "plan"),
        Binding("m", "view('metadata')", "meta"),
        Binding("f", "view('file')", "file"),
        Binding("d", "view('difference')", "diff"),
        Binding("question_mark", "view('help')", "keys", key_display="?"),
        Binding("escape", "leave", "", show=False),
        Binding("q", "quit", "quit"),
    ]
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = "#tree"

    def __init__(self, file: File, other: File | None = None) -> None:
        super().__init__()
        self.file, self.other = file, other
        self.files = [file] if other is None else [file, other]
        self.names = dict.fromkeys(name for each in self.files for name in each)
        self.view, self.selected = "file", ""
        self._statistics: dict[tuple[int, str], Statistics | str] = {}
        self._differences: dict[str, str] = {}
        self._reading: set[str] = set()
        self._shown = "", ""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer the difference where there are two files."""
        return self.other is not None or parameters != ("difference",)

    def compose(self) -> ComposeResult:
        """Lay out the widgets."""
        names = " and ".join(escape(file.name) for file in self.files)
        yield Static(Content(f"{names}: {counted(len(self.names), 'tensor')}"), id="title")
        yield Input(placeholder="/ searches names and types", id="search", compact=True)
        with Horizontal():
            yield Tree("tensors", id="tree")
            with VerticalScroll(id="pane"):
                yield Static(id="text")
        yield Footer()

    def on_mount(self) -> None:
        """Fill the tree and show the file."""
        tree = self.query_one("#tree", Tree)
        tree.show_root = False
        self._fill("")
        self._show()

    def on_resize(self) -> None:
        """Lay out the text for the new width."""
        self.call_after_refresh(self._show)

    def _fill(self, query: str) -> None:
        """List layers, whose tensors are added when they are opened; or what a search finds."""
        tree = self.query_one("#tree", Tree)
        tree.clear()
        if query:
            for name in self._found(query.lower().split()):
                tree.root.add_leaf(Text(escape(name)), name)
        else:
            layers = grouped(self.names, layer_of)
            for layer, names in sorted(layers.items(), key=lambda item: layer_order(item[0])):
                tree.root.add(Text(f"{escape(layer)} ({len(names)})"), names)
        tree.root.expand()

    def _found(self, words: Sequence[str]) -> list[str]:
        """Return names of tensors whose name and types have all words."""

        def has_words(name: str) -> bool:
            types = (stored_as(file[name].spec) for file in self.files if name in file)
            text = f"{name} {' '.join(types)}".lower()
            return all(word in text for word in words)

        found = islice(filter(has_words, self.names), MOST_FOUND)
        return sorted(found, key=lambda name: layer_order(layer_of(name)))

    def on_tree_node_expanded(self, event: Tree.NodeExpanded[Any]) -> None:
        """Add the tensors of a layer the first time that it is opened."""
        node = event.node
        if isinstance(node.data, list) and not node.children:
            prefix = f"{layer_of(node.data[0])}." if node.data else ""
            for name in node.data:
                node.add_leaf(Text(escape(name.removeprefix(prefix))), name)

    def on_tree_node_highlighted(self, event: Tree.NodeHighlighted[Any]) -> None:
        """Show the tensor, or the sum of a layer."""
        self._select(event.node.data)

    def _select(self, data: Any) -> None:
        """Show a tensor by its name, or the tensors of a layer."""
        if isinstance(data, str):
            self.selected = data
            if self.view in ("file", "help", "metadata", "layer"):
                self.view = "tensor"
        elif data:
            self.selected, self.view = layer_of(data[0]), "layer"
        self._show()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search while the words are typed."""
        self._fill(event.value)

    def on_input_submitted(self) -> None:
        """Go to the first that was found."""
        tree = self.query_one("#tree", Tree)
        self.screen.set_focus(tree)
        if tree.root.children:
            tree.move_cursor(tree.root.children[0])
            self._select(tree.root.children[0].data)

    def action_search(self) -> None:
        """Go to the search."""
        self.screen.set_focus(self.query_one("#search", Input))  # at once: the next key is part of the search

    def action_leave(self) -> None:
        """Leave the search and list all tensors."""
        self.query_one("#search", Input).value = ""
        self.screen.set_focus(self.query_one("#tree", Tree))

    def action_view(self, name: str) -> None:
        """Show something else of the selected tensor."""
        self.view = name
        if name in ("statistics", "difference") and self.selected in self.names:
            self._reading.add(self.selected)
            self._read(self.selected)
        self._show()

    @work(thread=True, exclusive=True)
    def _read(self, name: str) -> None:
        """Read the values of a tensor while the keys go on working."""
        for number, file in enumerate(self.files):
            if (number, name) not in self._statistics and name in file:
                try:
                    self._statistics[number, name] = file[name].statistics()
                except SquishError as error:
                    self._statistics[number, name] = str(error)
                self.call_from_thread(self._show)
        if self.other is not None and self.view == "difference" and all(name in file for file in self.files):
            self._differences[name] = _distance(self.file[name], self.other[name])
            self.call_from_thread(self._show)

    def _show(self) -> None:
        """Show the text of the current view from its start, of two files side by side."""
        pane = self.query_one("#pane", VerticalScroll)
        if self._shown != (self.view, self.selected):
            pane.scroll_home(animate=False)
        self._shown = self.view, self.selected
        width = max(pane.size.width - 3, 20)
        draw = VIEWS.get(self.view, _help)
        files = self.files
        if self.view == "help" or len(files) == 1:
            lines = fit_all(draw(self, 0, files[0]), width)
        else:
            lines = _beside([fit_all(draw(self, n, file), width // 2 - 1) for n, file in enumerate(files)], width)
        if self.view == "difference":
            lines = [*fit_all([self._differences.get(self.selected, "")], width), "", *lines]
        self.query_one("#text", Static).update(Content("\n".join(escape(line) for line in lines)))

    def tensor_of(self, file: File) -> Tensor | None:
        """The selected tensor in a file."""
        return file.get(self.selected)

    def read(self, number: int) -> Statistics | str:
        """Statistics of the selected tensor in a file, or why there are none."""
        waiting = "reading..." if self.selected in self._reading else READS
        return self._statistics.get((number, self.selected), waiting)


def _beside(columns: Sequence[Sequence[str]], width: int) -> list[str]:
    """Put columns of lines beside each other; cells that are still too wide are cut."""
    half = width // len(columns) - 1
    height = max(map(len, columns))
    padded = ([*column, *[""] * (height - len(column))] for column in columns)
    return [" ".join(f"{cell[:half]:{half}}" for cell in cells).rstrip() for cells in zip(*padded)]


def _tensor(browser: Browser, number: int, file: File) -> Iterable[str]:
    tensor = browser.tensor_of(file)
    if tensor is None:
        return ["no tensor is selected" if browser.selected not in browser.names else f"not in {file.name}"]
    lines = [
        tensor.name, "", f"shape  {' x '.join(map(str, tensor.shape)) or 'scalar'}", f"type   {stored_as(tensor.spec)}",
        f"bits   {tensor.bits_per_weight:.2f} per weight", f"size   {format_bytes(tensor.nbytes)}",
    ]  # fmt: skip
    if tensor.spec.tied_to:
        lines.append(f"same bytes as {tensor.spec.tied_to}")
    if tensor.spec.encodings:
        lines += ["", f"codec  {tensor.spec.encodings[0].codec}", "", "parts"]
        for role, part in tensor.spec.encodings[0].parts.items():
            lines.append(f"  {role}: {part.dtype} {list(part.shape)}")
    return [*lines, "", READS]


def _statistics(browser: Browser, number: int, file: File) -> Iterable[str]:
    tensor = browser.tensor_of(file)
    if tensor is None:
        return _tensor(browser, number, file)
    found = browser.read(number)
    if isinstance(found, str):
        return [tensor.name, "", found]
    moments = _moments(found, 1 if browser.other else 2)
    return [tensor.name, "", *moments, "", *_histogram(found), "", *_quantiles(found)]


def _moments(found: Statistics, columns: int) -> list[str]:
    """Extremes, moments and counts, in columns."""
    values = ((name, getattr(found, name)) for name in ("min", "max", "mean", "std", "rms"))
    cells = [f"{name:5} {value:<10.4g}" for name, value in values if value is not None]
    cells += [f"{name:5} {count:<10,}" for name, count in (("NaN", found.nan), ("inf", found.infinite)) if count]
    lines = [" ".join(cells[start : start + columns]).rstrip() for start in range(0, len(cells), columns)]
    lines += [f"{found.values:,} values", f"{found.zeros:,} zeros"]
    return [*lines, *([f"{found.outliers:.3%} beyond 3 std"] if found.outliers is not None else [])]


def _quantiles(found: Statistics) -> list[str]:
    """Quantiles, with the number of values if they are of some only."""
    lines = [f"{100 * share:5.4g} %  {value:.4g}" for share, value in found.quantiles.items()]
    return lines if found.exact or not lines else [*lines, f"of an even sample of {found.sampled:,} values"]


def _histogram(found: Statistics) -> list[str]:
    """Values by magnitude, largest first."""
    powers = sorted({*found.negative, *found.positive}, reverse=True)
    counts = {k: found.negative.get(k, 0) + found.positive.get(k, 0) for k in powers}
    most = max(counts.values(), default=1)
    labels = ((f"2^{k}" if k > LOWEST else "0", count) for k, count in counts.items())
    return ["|x| from", *(f"{label:>6} {'#' * -(-BAR * count // most)}" for label, count in labels)]


def _plan(browser: Browser, number: int, file: File) -> Iterable[str]:
    tensor = browser.tensor_of(file)
    try:
        return (file.plan().explain() if tensor is None else tensor.plan().explain()).split("\n")
    except SquishError as error:
        return str(error).split("\n")


def _metadata(browser: Browser, number: int, file: File) -> Iterable[str]:
    lines = [f"{key}: {abbreviate(value)}" for key, value in file.metadata.items()]
    return lines or ["no metadata"]


def _file(browser: Browser, number: int, file: File) -> Iterable[str]:
    found = file.summary()
    lines = [
        file.name,
        "",
        f"{found.format} {found.version}".rstrip(),
        f"{format_bytes(found.size)} in {counted(len(found.files), 'file')}",
        f"{counted(found.tensors, 'tensor')}, {counted(found.parameters, 'parameter')}",
        f"{found.bits:.2f} bits per weight",
        *(f"made from {line}" for line in lineage_lines(lineage(file))),
        "",
    ]
    for kind in found.codecs:
        lines.append(f"{kind.stored_as}  {kind.tensors:,} x, {format_bytes(kind.size)}, {kind.bits:.2f} bits")
        lines += [f"  cannot be decoded here: {kind.lacks}"] if kind.lacks else []
    lines += ["", *(f"{problem.severity}: {problem.message}" for problem in found.problems)]
    return [*lines, "? shows the keys"]


def _layer(browser: Browser, number: int, file: File) -> Iterable[str]:
    tensors = [file[name] for name in file if layer_of(name) == browser.selected]
    sums = total(browser.selected, tensors)
    return [
        browser.selected, "", counted(sums.tensors, "tensor"), f"{sums.parameters:,} parameters",
        format_bytes(sums.size), f"{sums.bits:.2f} bits per weight",
    ]  # fmt: skip


def _distance(one: Tensor, two: Tensor) -> str:
    """The difference of two tensors on one line."""
    try:
        found = compare(one.name, one, two)
    except SquishError as error:
        return str(error)
    return found.state if found.nmse is None else f"{found.state}, NMSE {found.nmse:.3g}, cosine {found.cosine:.6g}"


def _help(browser: Browser, number: int, file: File) -> Iterable[str]:
    return HELP.split("\n")


VIEWS: Mapping[str, Callable[[Browser, int, File], Iterable[str]]] = {
    "tensor": _tensor,
    "statistics": _statistics,
    "plan": _plan,
    "metadata": _metadata,
    "file": _file,
    "layer": _layer,
    "difference": _statistics,
    "help": _help,
}
