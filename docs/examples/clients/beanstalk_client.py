#!/usr/bin/env python3
"""A client of beanstalkd: stormproof test --client "exec:./beanstalk_client.py" ...; a queue is a tube."""
import json
import socket
import sys


def connect(host, port, **_):
    global link
    link = socket.create_connection((host, port)).makefile("rwb")


def ask(command, *expected):
    link.write(command.encode() + b"\r\n"), link.flush()
    word, *rest = link.readline().decode().split()
    assert word in expected, word  # anything else: nobody knows what happened
    return rest


def send(queue, body, **_):
    ask(f"use {queue}", "USING")
    ask(f"put 0 0 5 {len(body.encode())}\r\n{body}", "INSERTED")


def take(queue, timeout, **_):
    ask(f"watch {queue}", "WATCHING")
    rest = ask(f"reserve-with-timeout {max(1, round(timeout))}", "RESERVED", "TIMED_OUT", "DEADLINE_SOON")
    return {"delivery": rest[0], "body": link.read(int(rest[1]) + 2)[:-2].decode()} if rest else None


def ack(delivery, **_):
    ask(f"delete {delivery}", "DELETED")


def depth(queue, **_):
    rest = ask(f"stats-tube {queue}", "OK", "NOT_FOUND")
    text = link.read(int(rest[0]) + 2).decode() if rest else ""
    figures = dict(line.split(": ") for line in text.splitlines() if ": " in line)
    return int(figures.get("current-jobs-ready", 0)) + int(figures.get("current-jobs-reserved", 0))


print(json.dumps({"stormproof": 1, "can": ["queues"], "port": 11300, "prefetch": 1}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    try:
        answer = {"ok": None if request["op"] == "close" else globals()[request["op"]](**request)}
    except ConnectionRefusedError as error:
        answer = {"fail": str(error)}  # certainly not done
    except Exception as error:
        answer = {"error": repr(error)}  # it may have happened: the harness ends this program
    print(json.dumps({"id": request["id"], **answer}), flush=True)
