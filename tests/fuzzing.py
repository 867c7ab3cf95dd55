"""Files that are nearly right, and limits for what reads them: success or one clear error, soon, in bounded memory."""

import copy
import json
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from modeling_leaner.cli.command import describe


SECONDS = 20  # of a processor, for one file
PATIENCE = 300  # seconds for one file, on a machine that does other work
MEMORY = 3 * 2**30  # bytes beyond what the process has
LONGEST_MESSAGE = 2500  # characters
DEEP = 1500  # levels of lists in lists
NUMBERS = (-1, 0, 1, 3, 2**31, 2**63, 10**30, 10**400, -0.5, 0.5, 1e308, 5e-324)
NUMBERS += (float("nan"), float("inf"), -float("inf"))
TEXTS = ("", " ", "1", "true", "1e-3", "../../etc/passwd", "/", "\0", "\ud800", "é" * 300, "a\nb", "{}", "%s%n")
TEXTS += ("12" * 3000,)


TIMERS = ((signal.SIGPROF, signal.ITIMER_PROF, SECONDS), (signal.SIGALRM, signal.ITIMER_REAL, PATIENCE))


class TooSlow(BaseException):
    """A file took longer than it may."""


def values() -> st.SearchStrategy:
    """Values of another type, of another size, or of none."""
    leaves = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from(NUMBERS),
        st.sampled_from(TEXTS),
    )
    keys = st.text(max_size=5)
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3))


def places(document: object, path: tuple = ()) -> Iterator[tuple]:
    """The path of every value within a document."""
    items: Any = ()
    if isinstance(document, dict):
        items = document.items()
    elif isinstance(document, list):
        items = enumerate(document)
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def parent_of(document: Any, path: tuple) -> Any:
    """The dict or list that holds the value at a path."""
    for key in path[:-1]:
        document = document[key]
    return document


def nested(value: object, levels: int) -> object:
    """A value within lists within lists."""
    for _ in range(levels):
        value = [value]
    return value


def near(value: object) -> st.SearchStrategy:
    """Values of the same type."""
    match value:
        case bool():
            return st.just(not value)
        case int():
            return st.integers(0, 9) | st.sampled_from((value + 1, 2 * value))
        case float():
            return st.floats(0, 1) | st.just(2 * value)
        case str():
            return st.sampled_from((f"{value}x", value.upper(), value[:-1]))
    return st.just(value)


EDITS = ("near", "near", "near", "drop", "replace", "replace", "rename", "add", "exchange", "nest", "repeat")


@st.composite
def changed(draw: Callable, document: object) -> object:
    """A document with up to two values varied, dropped, replaced, renamed, added, exchanged, nested or repeated."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(0, 2))):
        paths = list(places(document))
        if not paths:
            break
        path = draw(st.sampled_from(paths))
        holder, key = parent_of(document, path), path[-1]
        edit = draw(st.sampled_from(EDITS))
        if edit == "near":
            holder[key] = draw(near(holder[key]))
        elif edit == "drop":
            del holder[key]
        elif edit == "replace":
            holder[key] = draw(values())
        elif edit == "rename" and isinstance(holder, dict):
            holder[draw(st.sampled_from((f"{key}s", str(key)[:-1], str(key).upper(), "")))] = holder.pop(key)
        elif edit == "add" and isinstance(holder, dict):
            holder[draw(st.text(max_size=6))] = draw(values())
        elif edit == "exchange":
            other = draw(st.sampled_from(paths))
            holder[key] = copy.deepcopy(parent_of(document, other)[other[-1]])
        elif edit == "nest":
            holder[key] = nested(holder[key], draw(st.sampled_from((1, 2, 50))))
        elif edit == "repeat" and isinstance(holder, list):
            holder.extend([copy.deepcopy(holder[key])] * draw(st.sampled_from((1, 2000))))
    return document


SPECIAL = (b"\xff\xfe", b"\xc3", b"\0", b"\t", b"}", b"]", b'"', b"\n", b"-", b"\xef\xbb\xbf", b"9" * 6000, b": ")


@st.composite
def damaged(draw: Callable, content: bytes, special: tuple[bytes, ...] = ()) -> bytes:
    """Bytes cut short, changed or added to; three times out of four as they are."""
    if draw(st.integers(0, 3)):
        return content
    place = draw(st.integers(0, len(content)))
    kind = draw(st.sampled_from(("cut", "change", "insert", "double", "empty")))
    if kind == "cut":
        return content[:place]
    if kind == "change":
        return content[:place] + draw(st.binary(min_size=1, max_size=4)) + content[place + 1 :]
    if kind == "insert":
        return content[:place] + draw(st.sampled_from((*SPECIAL, *special))) + content[place:]
    if kind == "double":
        return content + content
    return b""


def deep(opening: str, closing: str, levels: int = DEEP) -> bytes:
    """Brackets within brackets."""
    return (opening * levels + closing * levels).encode()


def bomb(levels: int = 9) -> bytes:
    """YAML whose aliases stand for 9 ** levels values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, levels)]
    return ("\n" + "\n".join(lines) + "\n").encode()


WHOLE_JSON = (b"", b"{}", b"[]", b"null", b"3", b'"x"', b"NaN", deep("[", "]"), deep('{"a":', "}"))
WHOLE_YAML = (b"", b"{}", b"[]", b"3", b"x", b"~", b"2026-13-45", b"a: 2026-13-45", b"? [a]\n: b", b"? {a: b}\n: c")
WHOLE_YAML += (b"a: !!python/object/apply:os.system [ls]", b"a: !!binary x", b"a: !!timestamp x", b"a: &x [*x]")
WHOLE_YAML += (b"a: &x {b: *x}", b"<<: 3", b"<<: [3]", b"a: !!int x", b"a: !!float x", b"a: !!set [b]")
WHOLE_YAML += (b"--- a\n--- b",)
WHOLE_YAML += (b"a: 1:99:99", b"a: 0o9", b"a: 0b", b"a: !!bool x", b"=: =", deep("[", "]"), deep("{a: ", "}"), bomb())
WHOLE_YAML += tuple(bomb() + f"{key}: *a8".encode() for key in ("shapes", "task", "data_files", "overrides", "tags"))
IN_YAML = (b"\n&a ", b"*a", b"!!python/name:os.system ", b"\n<<: *a\n", b"!!int ", b"!!float ", b"!!timestamp ")
IN_YAML += (bomb(),)


def json_files(document: object) -> st.SearchStrategy:
    """The bytes of a JSON file that is nearly this document."""
    edited = changed(document).map(lambda each: json.dumps(each).encode())
    return st.one_of(*[edited.flatmap(damaged)] * 9, st.sampled_from(WHOLE_JSON))


def yaml_bytes(document: object) -> bytes:
    """A document as a YAML file; what YAML has no form for is text."""
    try:
        return yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode(errors="surrogatepass")
    except yaml.YAMLError:
        return json.dumps(document).encode()


def yaml_files(document: object) -> st.SearchStrategy:
    """The bytes of a YAML file that is nearly this document."""
    edited = changed(document).map(yaml_bytes)
    return st.one_of(*[edited.flatmap(lambda content: damaged(content, IN_YAML))] * 9, st.sampled_from(WHOLE_YAML))


@contextmanager
def bounded() -> Iterator[None]:
    """Raises TooSlow after SECONDS or PATIENCE, and MemoryError beyond MEMORY."""

    def stop(*_: object) -> None:
        raise TooSlow

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    for number, timer, seconds in TIMERS:
        signal.signal(number, stop)
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for _, timer, _ in TIMERS:
            signal.setitimer(timer, 0)
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


class Judge:
    """Reads one file after another, and counts what came of it."""

    def __init__(self, read: Callable[[Path], object], *names: str, errors: tuple[type[Exception], ...] = ()):
        self.read = read
        self.names = names  # one of which an error has to name
        self.errors = (ValueError, OSError, *errors)
        self.accepted = 0
        self.refused = 0

    def __call__(self, path: Path) -> object:
        """What is read; None where it is refused as a user's mistake has to be. All else is raised."""
        try:
            with bounded():
                result = self.read(path)
        except self.errors as error:
            message = " ".join(describe(error).split())
            assert message, f"{error!r} says nothing"
            assert len(message) <= LONGEST_MESSAGE, f"{len(message)} characters: {message:.300}"
            assert any(name in message for name in self.names), f"names no file: {type(error).__name__} {message:.500}"
            self.refused += 1
            return None
        self.accepted += 1
        return result

    def check(self, cases: int) -> None:
        """A test of files that are all refused, or all accepted, proves nothing."""
        assert self.accepted + self.refused >= 0.9 * cases, (self.accepted, self.refused)
        assert min(self.accepted, self.refused) >= cases / 25, (self.accepted, self.refused)
        print(f"{self.accepted} accepted, {self.refused} refused")
