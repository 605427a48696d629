"""The rules that change a piece of source: every mutation that they allow in one file.

A mutation replaces one span of the source by another text (``ast`` gives exact positions), so that the rest of the file
stays as it is. Texts, logs, annotations, assertions, and what only observers read are left alone.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

NEGATE_CONDITION, NEGATE_OPERAND, SWAP_BRANCHES = "negate-condition", "negate-operand", "swap-branches"
SHIFT_BOUND, SHIFT_ARITHMETIC, SWAP_AND_OR = "shift-bound", "shift-arithmetic", "swap-and-or"
SWAP_MIN_MAX, SWAP_BOOLEAN, DOUBLE_CONSTANT = "swap-min-max", "swap-boolean", "double-constant"
DROP_CALL, DROP_SYNC, DROP_ASSIGNMENT = "drop-call", "drop-sync", "drop-assignment"
DROP_EXIT, SWAP_LOOP_EXIT = "drop-exit", "swap-loop-exit"
OPERATORS = {
    NEGATE_CONDITION: "a condition of an `if` without `else`, a `while` or a comprehension is negated",
    SWAP_BRANCHES: "a condition of an `if` with `else`, or of a conditional expression, is negated",
    NEGATE_OPERAND: "an operand of `and` or `or`, or a returned comparison, is negated",
    SHIFT_BOUND: "`<` and `<=` are exchanged, and `>` and `>=`",
    SHIFT_ARITHMETIC: "`+` and `-` are exchanged, and `*` and `/`",
    SWAP_AND_OR: "`and` and `or` are exchanged",
    SWAP_MIN_MAX: "`min` and `max` are exchanged",
    SWAP_BOOLEAN: "`True` and `False` are exchanged",
    DOUBLE_CONSTANT: "a number is doubled, and 0 becomes 1",
    DROP_CALL: "a statement that calls something is dropped",
    DROP_SYNC: "a statement that writes, synchronises or commits is dropped",
    DROP_ASSIGNMENT: "an assignment to an attribute or an item, an addition to a variable, or a `del` is dropped",
    DROP_EXIT: "an early `return` or a `raise` is dropped",
    SWAP_LOOP_EXIT: "`break` and `continue` are exchanged",
}
"""Name of each operator -> its rule."""

_OBSERVING = frozenset({"log", "_log", "point", "expose", "withdraw", "write_log"})
"""Names of calls that only observers notice."""
_SYNCS = re.compile(r"sync|flush|persist|commit|fsync|write|store|save|drain")
_BUGS = re.compile(r"\b(bugs?|bug_edits)\b")
"""Names in code that only switches bugs on."""
_TEXTUAL = ("__repr__", "__str__")
_BOUNDS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
}  # fmt: skip
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Span:
    """A piece of source that becomes another text: its bytes from ``start`` to before ``end``.

    ``line`` and ``last`` are its first and its last line; ``function`` is empty outside functions.
    """

    operator: str
    function: str
    line: int
    last: int
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Mutation:
    """One possible change of a file, with the lines that it touches, before and after.

    ``id`` stays the same while these lines, and the name of their function, do.
    """

    id: str
    file: str
    span: Span
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        """Return the changed source."""
        return source[: self.span.start] + self.span.text.encode() + source[self.span.end :]


def mutations_of(file: str, source: bytes, watched: Collection[str] = ()) -> list[Mutation]:
    """Return all mutations of a file, in the order of its lines; ``file`` is part of each identity.

    Assignments to attributes in ``watched``, which only observers read, are left alone.
    """
    seen: Counter[tuple[str, ...]] = Counter()
    found = []
    spans = sorted(_Finder(source, watched).find(), key=lambda span: (span.start, span.end, span.operator, span.text))
    for span in spans:
        before, after = _lines(source, span)
        identity = (file, span.function, span.operator, _squeezed(before), _squeezed(after))
        seen[identity] += 1
        digest = hashlib.sha256("\n".join((*identity, str(seen[identity]))).encode()).hexdigest()[:8]
        found.append(Mutation(digest, file, span, before, after))
    return found


def _lines(source: bytes, span: Span) -> tuple[str, str]:
    """Return the lines that a change touches, before and after it."""
    begin = source.rfind(b"\n", 0, span.start) + 1
    end = source.find(b"\n", span.end)
    end = len(source) if end < 0 else end
    after = source[begin : span.start] + span.text.encode() + source[span.end : end]
    return source[begin:end].decode(), after.decode()


def _squeezed(text: str) -> str:
    return " ".join(text.split())


class _Finder:
    """Walks through a syntax tree and collects the spans that the operators may change."""

    def __init__(self, source: bytes, watched: Collection[str]) -> None:
        self._source = source
        self._watched = watched
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._names: list[str] = []
        self._functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        self._found: list[Span] = []

    def find(self) -> list[Span]:
        """Return the spans of the whole source."""
        self._block(ast.parse(self._source).body)
        return self._found

    # Positions

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._at(node.lineno, node.col_offset)

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._at(node.end_lineno, node.end_col_offset)

    def _text(self, node: ast.expr | ast.stmt) -> str:
        return self._source[self._start(node) : self._end(node)].decode()

    def _add(self, operator: str, node: ast.expr | ast.stmt, text: str) -> None:
        self._span(operator, node, self._start(node), self._end(node), text)

    def _span(self, operator: str, node: ast.expr | ast.stmt, start: int, end: int, text: str) -> None:
        function = ".".join(self._names) if self._functions else ""
        line = self._source.count(b"\n", 0, start) + 1
        last = node.end_lineno or node.lineno
        self._found.append(Span(operator, function, line, last, start, end, text))

    def _between(self, operator: str, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """Exchange the sign between two operands, unless something else there looks like it."""
        start, gap = self._end(left), self._source[self._end(left) : self._start(right)].decode()
        if gap.count(old) == 1:
            begin = start + len(gap[: gap.index(old)].encode())
            self._span(operator, right, begin, begin + len(old), new)

    # Statements

    def _block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Expr | ast.Assign) and _BUGS.search(self._text(node)):
            return
        match node:
            case ast.ClassDef():
                self._class(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node)
            case ast.If():
                self._if(node)
            case ast.While():
                if not isinstance(node.test, ast.Constant):
                    self._condition(NEGATE_CONDITION, node.test)
                self._block(node.body + node.orelse)
            case ast.For() | ast.AsyncFor():
                self._expression(node.iter)
                self._block(node.body + node.orelse)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._expression(item.context_expr)
                self._block(node.body)
            case ast.Try() | ast.TryStar():
                self._block(node.body)
                for handler in node.handlers:
                    self._block(handler.body)
                self._block(node.orelse + node.finalbody)
            case ast.Match():
                self._expression(node.subject)
                for each in node.cases:
                    if each.guard is not None:
                        self._condition(NEGATE_CONDITION, each.guard)
                    self._block(each.body)
            case ast.Expr():
                self._expression_statement(node)
            case ast.Assign() | ast.AugAssign() | ast.AnnAssign():
                self._assignment(node)
            case ast.Delete():
                self._drop(DROP_ASSIGNMENT, node)
            case ast.Return():
                self._return(node)
            case ast.Raise():
                self._drop(DROP_EXIT, node)
            case ast.Break():
                self._add(SWAP_LOOP_EXIT, node, "continue")
            case ast.Continue():
                self._add(SWAP_LOOP_EXIT, node, "break")
            case _:  # Imports, assertions, declarations, `pass`.
                pass

    def _class(self, node: ast.ClassDef) -> None:
        if any("Protocol" in ast.unparse(base) for base in node.bases):
            return
        self._names.append(node.name)
        self._block(node.body)
        self._names.pop()

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        abstract = any("abstractmethod" in ast.unparse(each) for each in node.decorator_list)
        if abstract or node.name in _TEXTUAL or node.name in _OBSERVING:
            return
        for default in (*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None)):
            self._expression(default)
        self._names.append(node.name)
        self._functions.append(node)
        self._block(node.body)
        self._functions.pop()
        self._names.pop()

    def _if(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if all(self._is_unseen(statement) for statement in node.body + node.orelse):
            return
        self._condition(SWAP_BRANCHES if node.orelse else NEGATE_CONDITION, node.test)
        self._block(node.body + node.orelse)

    def _is_unseen(self, node: ast.stmt) -> bool:
        """Return whether a statement changes only what observers or people read."""
        if isinstance(node, ast.Assign):
            return _is_sentence(node.value) or self._is_watched(node.targets)
        value = node.value if isinstance(node, ast.Expr) else None
        return isinstance(node, ast.Pass) or (isinstance(value, ast.Call) and _observes(value))

    def _is_watched(self, targets: Sequence[ast.expr]) -> bool:
        """Return whether an assignment has only targets that only observers read."""
        return all(isinstance(target, ast.Attribute) and target.attr in self._watched for target in targets)

    def _expression_statement(self, node: ast.Expr) -> None:
        value = node.value
        if isinstance(value, ast.Constant):  # A documentation string.
            return
        call = value.value if isinstance(value, ast.Await) else value
        if isinstance(call, ast.Call):
            name = _called(call)
            if _observes(call) or "super()" in ast.unparse(call.func):
                return
            self._drop(DROP_SYNC if _SYNCS.search(name) else DROP_CALL, node)
        self._expression(value)

    def _assignment(self, node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id.startswith("__") for target in targets):
            return
        if self._is_watched(targets):
            return
        creates = bool(self._functions) and self._functions[-1].name == "__init__"
        kept = all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
        if self._functions and not creates and (kept or isinstance(node, ast.AugAssign)) and node.value is not None:
            self._drop(DROP_ASSIGNMENT, node)
        if isinstance(node, ast.AugAssign):
            signs = _ARITHMETIC.get(type(node.op))
            if signs is not None and not _textual(node.value):
                self._between(SHIFT_ARITHMETIC, node.target, node.value, *signs)
        if node.value is not None:
            self._expression(node.value)

    def _return(self, node: ast.Return) -> None:
        if self._functions and node is not self._functions[-1].body[-1]:
            self._drop(DROP_EXIT, node)
        if node.value is None:
            return
        if isinstance(node.value, ast.Compare) or _is_not(node.value):
            self._condition(NEGATE_OPERAND, node.value)
        else:
            self._expression(node.value)

    def _drop(self, operator: str, node: ast.stmt) -> None:
        if self._functions:
            self._add(operator, node, "pass")

    # Expressions

    def _condition(self, operator: str, node: ast.expr) -> None:
        """Negate an expression, and change what it contains."""
        if _is_not(node):
            assert isinstance(node, ast.UnaryOp)
            self._add(operator, node, f"({self._text(node.operand)})")
            self._children(node.operand)
            return
        self._add(operator, node, f"not ({self._text(node)})")
        self._expression(node)

    def _expression(self, node: ast.expr) -> None:
        match node:
            case ast.JoinedStr():
                return
            case ast.Call() if _observes(node):
                return
            case ast.Compare():
                self._compare(node)
            case ast.BoolOp():
                self._bool(node)
                return
            case ast.IfExp() if _is_sentence(node.body) and _is_sentence(node.orelse):
                return
            case ast.IfExp():
                self._condition(SWAP_BRANCHES, node.test)
                self._expression(node.body)
                self._expression(node.orelse)
                return
            case ast.BinOp():
                self._binary(node)
                return
            case ast.Constant():
                self._constant(node)
            case ast.Call(func=ast.Name(id="min" | "max" as name)):
                self._add(SWAP_MIN_MAX, node.func, "max" if name == "min" else "min")
            case ast.Subscript():
                self._expression(node.value)
                if not isinstance(node.slice, ast.Constant | ast.Slice | ast.UnaryOp):
                    self._expression(node.slice)
                return
            case _:
                pass
        self._children(node)

    def _children(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.comprehension):
                self._expression(child.iter)
                for condition in child.ifs:
                    self._condition(NEGATE_CONDITION, condition)
            elif isinstance(child, ast.expr):
                self._expression(child)
            elif isinstance(child, ast.keyword):
                self._expression(child.value)

    def _compare(self, node: ast.Compare) -> None:
        left = node.left
        for sign, right in zip(node.ops, node.comparators, strict=True):
            if type(sign) in _BOUNDS:
                self._between(SHIFT_BOUND, left, right, *_BOUNDS[type(sign)])
            left = right

    def _bool(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(SWAP_AND_OR, left, right, old, new)
        for value in node.values:
            if isinstance(value, ast.BoolOp):
                self._expression(value)
            else:
                self._condition(NEGATE_OPERAND, value)

    def _binary(self, node: ast.BinOp) -> None:
        signs = _ARITHMETIC.get(type(node.op))
        sums = not isinstance(node.op, ast.Add) or _is_number(node.left) or _is_number(node.right)
        if signs is not None and sums and not _textual(node.left) and not _textual(node.right):
            self._between(SHIFT_ARITHMETIC, node.left, node.right, *signs)
        self._expression(node.left)
        if not isinstance(node.op, ast.LShift | ast.RShift):
            self._expression(node.right)

    def _constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._add(SWAP_BOOLEAN, node, str(not value))
        elif isinstance(value, int | float):
            self._add(DOUBLE_CONSTANT, node, repr(2 * value) if value else "1")


def _is_not(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _textual(node: ast.expr) -> bool:
    """Return whether the expression is visibly a text or a collection."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bytes)
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.Dict | ast.Set | ast.ListComp | ast.GeneratorExp)


def _is_sentence(node: ast.expr) -> bool:
    """Return whether the expression is a text for people: one with a space."""
    if isinstance(node, ast.JoinedStr):
        return any(_is_sentence(piece) for piece in node.values)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value


def _called(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _observes(call: ast.Call) -> bool:
    """Return whether a call only tells observers something: a log, a trace, a named point."""
    return _called(call) in _OBSERVING or "trace" in ast.unparse(call.func).lower()
