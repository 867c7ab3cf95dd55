"""Lines that a reader follows at first sight: what may be counted of that, over the models and over the training."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from modeling_leaner.registry import FAMILIES


ROOT = Path(__file__).parent.parent
PACKAGES = ("modeling_leaner", "training")
MOST_CONDITIONALS = 15  # per 1,000 lines without blanks and comments
MOST_PACKED = 4
LONGEST_FUNCTION = 60  # lines
MOST_MERGED = 2  # parts of a dict joined by |
PREDICATES = ("isinstance", "issubclass", "hasattr", "callable", "bool", "any", "all", "exists", "is_file", "is_dir")
PREDICATES += ("startswith", "endswith", "isfinite", "isdigit", "isdecimal", "isatty", "issuperset", "issubset")


class Source(NamedTuple):
    """A parsed file."""

    name: str
    lines: int  # without blanks and comments
    tree: ast.Module


def parsed(name: str, text: str) -> Source:
    """A source from its text."""
    lines = [line.strip() for line in text.splitlines()]
    return Source(name, sum(line != "" and not line.startswith("#") for line in lines), ast.parse(text))


def sources(package: str) -> list[Source]:
    """Every file of a package."""
    paths = sorted((ROOT / package).rglob("*.py"))
    return [parsed(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in paths]


def is_predicate(node: ast.expr) -> bool:
    """Whether an expression is plainly true or false, rather than a value."""
    match node:
        case ast.Compare() | ast.UnaryOp(op=ast.Not()):
            return True
        case ast.Constant(value=bool()):
            return True
        case ast.BoolOp(values=values):
            return all(map(is_predicate, values))
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in PREDICATES or name.lstrip("_").startswith(("is_", "has_", "can_"))
    return False


def conditions(tree: ast.Module) -> set[ast.expr]:
    """What is only asked whether it is true: tests of if, while, assert and comprehensions, and their parts."""
    waiting: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While | ast.Assert | ast.IfExp):
            waiting.append(node.test)
        elif isinstance(node, ast.comprehension):
            waiting.extend(node.ifs)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            waiting.append(node.operand)
        elif isinstance(node, ast.match_case) and node.guard is not None:
            waiting.append(node.guard)
    reached = set()
    while waiting:
        node = waiting.pop()
        reached.add(node)
        if isinstance(node, ast.BoolOp):
            waiting.extend(node.values)
    return reached


def selects_value(node: ast.AST, asked: set[ast.expr]) -> bool:
    """Whether a node chooses among values: a conditional expression, `x or default`, `{True: a, False: b}[flag]`."""
    if isinstance(node, ast.IfExp):
        return True
    if isinstance(node, ast.BoolOp):
        return node not in asked and not is_predicate(node)
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict | ast.Tuple | ast.List)


def conditionals(tree: ast.Module) -> list[int]:
    """The lines of expressions that choose among values."""
    asked = conditions(tree)
    return [node.lineno for node in ast.walk(tree) if selects_value(node, asked)]


def is_packed(node: ast.AST) -> bool:
    """Whether a node is `a, b = x, y`."""
    if not isinstance(node, ast.Assign):
        return False
    return isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple)


def packed(tree: ast.Module) -> list[int]:
    """The lines of `a, b = x, y`; to unpack a call is no such line."""
    return [node.lineno for node in ast.walk(tree) if is_packed(node)]


def merged(node: ast.AST) -> int:
    """How many parts a chain of | has, where one of them is a dict."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)):
        return 1
    return merged(node.left) + merged(node.right)


def holds_dict(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Dict | ast.DictComp) for part in ast.walk(node))


def knots(tree: ast.Module) -> Iterator[str]:
    """What is never written: each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp) and any(isinstance(part, ast.IfExp) for part in (node.body, node.orelse)):
            yield f"{node.lineno}: a conditional expression inside another"
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Tuple):
            yield f"{node.lineno}: a tuple as a statement"
        if isinstance(node, ast.BinOp) and merged(node) > MOST_MERGED and holds_dict(node):
            yield f"{node.lineno}: a dict of more than {MOST_MERGED} parts"
        if is_packed(node) and any(isinstance(part, ast.IfExp) for part in node.value.elts):
            yield f"{node.lineno}: a conditional expression inside a packed assignment"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            if length > LONGEST_FUNCTION:
                yield f"{node.lineno}: {node.name} has {length} lines, more than {LONGEST_FUNCTION}"


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("count, most", [(conditionals, MOST_CONDITIONALS), (packed, MOST_PACKED)])
def test_how_much_a_thousand_lines_ask_of_a_reader(package, count, most):
    files = sources(package)
    places = [f"{source.name}:{line}" for source in files for line in count(source.tree)]
    rate = 1000 * len(places) / sum(source.lines for source in files)
    assert rate <= most, f"{count.__name__}: {rate:.1f} per 1,000 lines of {package}: {', '.join(places)}"


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_is_knotted(package):
    assert [f"{source.name}:{knot}" for source in sources(package) for knot in knots(source.tree)] == []


FAMILY_NAMES = {*FAMILIES, *(f"lean_{name}" for name in FAMILIES)}


def asked_for_a_family(tree: ast.Module) -> list[int]:
    """The lines of comparisons with the name of one family."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            values = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            if FAMILY_NAMES & {value for value in values if isinstance(value, str)}:
                lines.append(node.lineno)
    return lines


def test_no_line_asks_for_one_family():
    """Facts about a family stand in registry.py; advice.py has sources that measured one family."""
    files = [source for package in PACKAGES for source in sources(package) if not source.name.endswith("advice.py")]
    assert [f"{source.name}:{line}" for source in files for line in asked_for_a_family(source.tree)] == []
    for line in (
        'if family == "vit": pass',
        'x = config.model_type != "lean_gpt"',
        'if family in ("bert", "gpt"): pass',
    ):
        assert asked_for_a_family(parsed("planted", line).tree) == [1], line


PLANTED = {
    conditionals: [
        "x = a if b else c",
        "x = a or b",
        "x = {True: a, False: b}[c]",
        "f(a and b)",
        "x = [a, b][c]",
        "return_value = name or 'default'",
    ],
    packed: ["a, b = x, y", "a, (b, c) = x, y"],
}
ALLOWED = {
    conditionals: ["if a or b: pass", "x = a == b or c == d", "x = [i for i in y if i or z]", "while a and b: pass"],
    packed: ["a, b = f(x)", "a = x, y", "for a, b in zip(x, y): pass"],
}


@pytest.mark.parametrize("count", PLANTED)
def test_the_counts_see_what_is_planted(count):
    for line in PLANTED[count]:
        assert count(parsed("planted", line).tree) == [1], line
    for line in ALLOWED[count]:
        assert count(parsed("allowed", line).tree) == [], line


def test_knots_are_seen():
    long = "def f():\n" + "    x = 1\n" * LONGEST_FUNCTION
    for text in ("x = a if b else c if d else e", "a, b", "x = {1: 2} | y | {3: 4}", "a, b = c, d if e else f", long):
        assert len(list(knots(parsed("planted", text).tree))) >= 1, text
    for text in ("x = {1: 2} | y", "x: int | str | None = 1", "x = a | b | c"):
        assert list(knots(parsed("allowed", text).tree)) == [], text
