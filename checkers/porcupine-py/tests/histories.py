"""Random histories and an exhaustive oracle, for the tests."""

import random
from dataclasses import replace

from porcupine import NO_OUTPUT, Operation


def linearizable(model, operations):
    """By the definition: some order of the completed and some of the crashed operations respects time and the model.

    Tries every operation that nothing remaining precedes; remembers failures by (set of operations done, state). Shares
    nothing with the package but the plain model's steps.
    """
    n = len(operations)
    must = frozenset(i for i in range(n) if operations[i].ret is not None)
    failed = set()

    def go(done, state):
        if must <= done:
            return True
        if (done, state) in failed:
            return False
        for i in range(n):
            if i in done:
                continue
            # Equal times overlap: a strict comparison decides who precedes whom.
            if any(operations[j].ret < operations[i].call for j in must - done):
                continue
            o = operations[i]
            for after in model.steps(state, o.input, NO_OUTPUT if o.ret is None else o.output):
                if go(done | {i}, after):
                    return True
        failed.add((done, state))
        return False

    return go(frozenset(), model.init())


def _draw(rng, name, values, n_done):
    """One input of a model; values from a small range or (values None) all different."""

    def value():
        return rng.randrange(1, values + 1) if values else n_done + 1

    read_value = rng.randrange(1, (values or max(1, n_done)) + 1)
    if name == "register":
        return rng.choice([("read",), ("write", value())])
    if name == "cas-register":
        return rng.choice([("read",), ("write", value()), ("cas", rng.choice([None, read_value, read_value]), value())])
    if name == "kv":
        key = rng.choice("ab")
        return rng.choice([("get", key), ("put", key, value()), ("get", key), ("cas", key, read_value, value())])
    if name == "kv-text":
        key, text = rng.choice("ab"), rng.choice(["x", "y", "xy", ""])
        return rng.choice(
            [
                ("get", key),
                ("get", key),
                ("put", key, text),
                ("append", key, text),
                ("append", key, text),
                ("cas", key, text, rng.choice(["x", "xx"])),
            ]
        )
    if name in ("fifo-queue", "unordered-queue"):
        return rng.choice([("enqueue", value()), ("dequeue",)])
    if name == "stack":
        return rng.choice([("push", value()), ("pop",)])
    if name == "priority-queue":
        return rng.choice([("insert", value()), ("delete-min",)])
    if name == "set":
        return rng.choice([("add", value()), ("remove", read_value), ("contains", read_value)])
    if name == "set-read":
        return rng.choice(
            [("add", value()), ("add", value()), ("read",), ("remove", read_value), ("contains", read_value)]
        )
    if name == "set-grow":
        return rng.choice([("add", value()), ("read",)])
    if name in ("lock", "reentrant-lock", "fenced-lock"):
        return rng.choice([("acquire", rng.randrange(2)), ("release", rng.randrange(2))])
    if name == "counter":
        delta = rng.choice([-1, 1, 2])
        return rng.choice([("add", delta), ("inc",), ("read",), ("add-and-get", delta), ("get-and-add", delta)])
    return rng.choice([("append", value()), ("read", rng.choice([None, 0, 1, 2]))])


def _answer(rng, model, name, state, given, token):
    """An admitted output and the state after it, by trying what the operation could answer; None if it can't be done
    now."""
    f = given[0]
    if f in ("get", "read", "dequeue", "pop", "delete-min") or name == "log" or "-and-" in f:
        if name == "counter":
            outputs = [state, state + model.delta(given)]
        elif name.startswith("set"):
            outputs = [sorted(state)]
        elif name == "log":
            outputs = [len(state), None] if f == "append" else [list(state), None, *state]
            rng.shuffle(outputs)
        elif f in ("get", "read"):
            outputs = [state]
        else:
            outputs = sorted({v[0] for v in state} if name == "unordered-queue" else set(state)) or [None]
            rng.shuffle(outputs)
    elif name == "fenced-lock" and f == "acquire":
        outputs = [token + rng.randrange(1, 3), False]
    else:
        outputs = [True, False, None] if f in ("contains", "cas", "acquire", "release") else [None, True, False]
        if f in ("add", "remove") and rng.random() < 0.5:
            outputs = [True, False, None]
    for output in outputs:
        for after in model.steps(state, given, output):
            return output, after
    return None


def _spoil(rng, name, operation, operations):
    """Another output."""
    output = operation.output
    if name == "fenced-lock" and operation.input[0] == "acquire":
        return replace(operation, output=max(1, output + rng.choice([-1, -2])) if output else rng.choice([1, 2, 3]))
    if isinstance(output, bool):
        return replace(operation, output=not output)
    other = rng.choice(operations).output
    if isinstance(output, list):
        return replace(
            operation,
            output=rng.choice([output[:-1], output[1:], [*output, 1], other if isinstance(other, list) else []]),
        )
    if name == "kv-text":
        return replace(operation, output=rng.choice(["x", "y", "xy", "xx", "", "xyx"]))
    if name == "counter":
        return replace(operation, output=output + rng.choice([-1, 1]) if output is not None else None)
    if name == "log" and operation.input[0] == "append":
        return replace(operation, output=rng.randrange(3))
    if operation.input[0] in ("read", "get", "dequeue", "pop", "delete-min"):
        return replace(operation, output=rng.choice([None, 1, 2, 3, 4, other if isinstance(other, int) else 1]))
    return operation


def random_history(rng: random.Random, model, name, *, n, processes, distinct, crashes, ties):
    """Operations with answers of a real run, some of them then spoilt: about half the histories are not
    linearizable."""
    state = model.init()
    token = 0
    clock = 0
    running = {}  # process -> [input, call, output or None]
    operations = []
    started = 0
    keyed = {}
    values = None if distinct else rng.choice([1, 2, 3, 7])

    def tick():
        nonlocal clock
        clock += 0 if ties and rng.random() < 0.3 else 1
        return clock

    while started < n or running:
        process = rng.randrange(processes)
        if process not in running:
            if started < n:
                running[process] = [_draw(rng, name, values, started), tick(), None]
                started += 1
            continue
        given, call, answer = running[process]
        current = keyed.get(given[1], state) if name.startswith("kv") else state
        if answer is None:
            answer = _answer(rng, model, name, current, given, token)
            if answer is None:
                del running[process]
                started += 1
                continue
            if crashes and rng.random() < 0.2:
                if rng.random() < 0.5:
                    after = answer[1]
                    if given[0] in ("acquire",) and name == "fenced-lock" and answer[0]:
                        after = (*after[:2], token + 1)
                        token += 1
                    if name.startswith("kv"):
                        keyed[given[1]] = after
                    else:
                        state = after
                operations.append(Operation(process, given, None, call, None))
                del running[process]
                continue
            if name.startswith("kv"):
                keyed[given[1]] = answer[1]
            else:
                state = answer[1]
            if name == "fenced-lock" and given[0] == "acquire" and answer[0]:
                token = answer[0]
            running[process][2] = answer
        elif rng.random() < 0.6:
            operations.append(Operation(process, given, answer[0], call, tick()))
            del running[process]
    completed = [i for i, o in enumerate(operations) if o.ret is not None]
    if completed and rng.random() < 0.6:
        for _ in range(rng.choice([1, 1, 2])):
            i = rng.choice(completed)
            operations[i] = _spoil(rng, name, operations[i], operations)
    return operations
