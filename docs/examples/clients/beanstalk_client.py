#!/usr/bin/env python3
"""A client of beanstalkd for `exec:`, a queue is a tube."""
import json
import socket
import sys

COUNTED = "current-jobs-ready", "current-jobs-reserved"


def connect(host, port, **_):
    global link
    link = socket.create_connection((host, port)).makefile("rwb")


def ask(command):
    link.write(command.encode() + b"\r\n"), link.flush()
    return link.readline().decode().split()


def send(queue, body):
    ask(f"use {queue}")
    assert ask(f"put 0 0 5 {len(body.encode())}\r\n{body}")[0] == "INSERTED"


def take(queue, timeout):
    ask(f"watch {queue}")
    word, *rest = ask(f"reserve-with-timeout {max(1, round(timeout))}")
    return {"delivery": rest[0], "body": link.read(int(rest[1]) + 2)[:-2].decode()} if word == "RESERVED" else None


def ack(delivery):
    assert ask(f"delete {delivery}") == ["DELETED"]


def depth(queue):
    word, *rest = ask(f"stats-tube {queue}")
    text = link.read(int(rest[0]) + 2).decode() if word == "OK" else ""
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(COUNTED))


print(json.dumps({"stormproof": 1, "can": ["queues"], "prefetch": 1}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    number, op = request.pop("id"), request.pop("op")
    if op == "close":
        break
    try:
        answer = {"ok": globals()[op](**request)}
    except ConnectionRefusedError as error:
        answer = {"fail": str(error)}  # certainly not done
    except Exception as error:
        answer = {"error": repr(error)}  # it may have happened; the harness ends this program
    print(json.dumps({"id": number, **answer}), flush=True)
