"""What is fuzzed of porcupine: every format, and the command."""

from __future__ import annotations

import gzip
import io
import tempfile
from pathlib import Path

from hostile_fuzz import Target

PORCUPINE = ("checkers/porcupine-py/porcupine/formats", "checkers/porcupine-py/porcupine/models")
MIB = 1 << 20


def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="hostile-"))


# Histories of other tools.

JSONL = b"".join(
    b'{"process": %d, "type": "%s", "f": "%s", "value": %s}\n' % row
    for row in [
        (0, b"invoke", b"write", b"1"),
        (1, b"invoke", b"cas", b"[1, 2]"),
        (0, b"ok", b"write", b"1"),
        (1, b"fail", b"cas", b"[1, 2]"),
        (2, b"invoke", b"read", b"null"),
        (2, b"ok", b"read", b"1"),
        (3, b"invoke", b"read", b"null"),
        (3, b"info", b"read", b'"timeout"'),
    ]
)
EDN = (
    b"; a history\n[{:process 0, :type :invoke, :f :write, :value 1}\n#_ {:a #{1 2}} {:process :nemesis :type :info"
    b' :f :start :value "a\\n"}\n{:process 0, :type :ok, :f :write, :value #inst "2026" }\n{:process 1 :type :invoke'
    b" :f :cas :value (1 2N)} {:process 1 :type :fail :f :cas :value [1 2]} {:process 2 :type :invoke :f :read}"
    b" {:process 2 :type :ok :f :read :value 1.5e3M}]"
)
KV = (
    b'{:process 0, :type :invoke, :f :get, :key "0", :value nil}\n'
    b'{:process 0, :type :ok, :f :get, :key "0", :value "x"}\n'
    b'{:process 1, :type :invoke, :f :append, :key "1", :value "a b"}\n'
)
LOG = (
    b"INFO  jepsen.util - 0\t:invoke\t:write\t3\nINFO  jepsen.util - 0\t:ok\t:write\t3\n"
    b"INFO  jepsen.core - x\nINFO  jepsen.util - 1\t:invoke\t:cas\t[3 4]\nINFO  jepsen.util - 1\t:info\t:cas\ttime"
    b"out\nINFO  jepsen.util - :nemesis\t:info\t:start\tnil\n"
)
TXN = (
    b"{:process 0 :type :invoke :f :txn :value [[:r :x nil] [:w :y 2]]}\n"
    b"{:process 0 :type :ok :f :txn :value [[:r :x 1] [:w :y 2]]}\n"
)
EDN_WORDS = (
    b":process",
    b":type",
    b":invoke",
    b":ok",
    b":info",
    b":fail",
    b":f",
    b":value",
    b"nil",
    b"#{",
    b"#_",
    b"}",
    b"{",
    b"[",
    b"]",
    b"(",
    b")",
    b'"',
    b"\\",
    b";",
    b"\n",
    b",",
    b":key",
    b"#inst",
    b":nemesis",
    b"\\newline",
    b":read",
    b":write",
    b":cas",
    b":get",
    b":put",
    b":append",
    b":txn",
    b":r",
    b":w",
    b"1N",
    b"1M",
)
JSON_WORDS = (
    b'"process"',
    b'"type"',
    b'"invoke"',
    b'"ok"',
    b'"info"',
    b'"f"',
    b'"value"',
    b'"key"',
    b'"nemesis"',
    b"null",
    b"true",
    b"NaN",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\\ud800",
    b"\n",
)


def porcupine_files(
    form: str | None, seeds: list[bytes], words: tuple[bytes, ...], is_json: bool = False, names: tuple[str, ...] = ()
) -> Target:
    """A format of porcupine: the file is read for every model, and what can be read is checked."""
    from porcupine import MODELS, PorcupineError, check_operations_verbose, model_named
    from porcupine.formats import load_history

    path = _folder() / "h"
    turn = iter(range(1 << 60))
    known = names or tuple(MODELS)
    models = {name: model_named(name) for name in known}

    def run(data: bytes) -> None:
        path.write_bytes(data)
        model = models[known[next(turn) % len(known)]]
        try:
            history = load_history(path, model, form, pass_over=("x",), max_history=32 * MIB)
            if len(history.operations) < 200:
                check_operations_verbose(model, history.operations, timeout=1.0, max_steps=20_000)
        except PorcupineError as error:
            assert "\n" not in str(error), "more than one line"
            assert str(error).startswith(str(path)) or len(str(error)) < 300, str(error)[:100]

    return Target(run, seeds, PORCUPINE, words, is_json)


def porcupine_gzip() -> Target:
    packed = [gzip.compress(data, mtime=0) for data in (JSONL, EDN, LOG)]
    return porcupine_files(None, [*packed, packed[0] + packed[1], JSONL], (b"\x1f\x8b\x08",), names=("cas-register",))


def porcupine_parquet() -> Target:
    from hostile_files import small_history

    return porcupine_files(None, [small_history()], (b"PAR1",), names=("unordered-queue", "register"))


def porcupine_command() -> Target:
    """The whole command: whatever is in the file, its status is one of four, and 3 comes with one line."""
    import contextlib

    from porcupine.cli import main

    path = _folder() / "h"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        out, told = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
            status = main(["check", "--model", "cas-register", "--timeout", "1", "--max-history", "32M", str(path)])
        text = told.getvalue()
        assert status in (0, 1, 2, 3), status
        assert (status == 3) == (text != ""), (status, text)
        if status == 3:
            assert text.startswith(f"porcupine: {path}") and text.count("\n") == 1, text
            assert not any(f": {word}Error" in text for word in ("Type", "Key", "Index", "Attribute", "Value")), text
        else:
            assert out.getvalue().startswith(f"{path}: {('ok', 'illegal', 'unknown')[status]} ")

    return Target(
        run,
        [JSONL, EDN, LOG, gzip.compress(EDN, mtime=0)],
        ("checkers/porcupine-py/porcupine",),
        EDN_WORDS + JSON_WORDS,
    )


def porcupine_initial() -> Target:
    from porcupine import Operation, PorcupineError, check_operations, model_named
    from porcupine.cli import _value

    def run(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        for name in ("register", "cas-register", "multi-register"):
            try:
                model = model_named(name, _value(text))
                read = ("txn", (("r", "x", 1),)) if name == "multi-register" else ("read",)
                check_operations(model, [Operation(0, read, 1, 0, 1)])
            except PorcupineError:
                pass

    return Target(run, [b"5", b"{:x 0 :y 1}", b'{"x": 0}', b"[1 [2]]", b"nil"], PORCUPINE, EDN_WORDS, True)
