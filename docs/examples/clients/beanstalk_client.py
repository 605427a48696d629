#!/usr/bin/env python3
"""A client of beanstalkd: stormproof test --client "exec:./beanstalk_client.py" ...; a queue is a tube."""
import json
import socket
import sys


def ask(command, *expected):
    link.write(command.encode() + b"\r\n"), link.flush()
    word, *rest = link.readline().decode().split()
    assert word in expected, word  # anything else: nobody knows what happened
    return rest


def carry_out(op, queue="", body="", host="", port=0, timeout=0, delivery="", **_):
    global link
    if op == "connect":
        link = socket.create_connection((host, port)).makefile("rwb")
    elif op == "send":
        ask(f"use {queue}", "USING"), ask(f"put 0 0 5 {len(body.encode())}\r\n{body}", "INSERTED")
    elif op == "take":
        ask(f"watch {queue}", "WATCHING")
        wait = f"reserve-with-timeout {max(1, round(timeout))}"
        if rest := ask(wait, "RESERVED", "TIMED_OUT", "DEADLINE_SOON"):
            return {"delivery": rest[0], "body": link.read(int(rest[1]) + 2)[:-2].decode()}
    elif op == "ack":
        ask(f"delete {delivery}", "DELETED")
    elif op == "depth" and (rest := ask(f"stats-tube {queue}", "OK", "NOT_FOUND")):
        lines = link.read(int(rest[0]) + 2).decode().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("current-jobs-re"))  # ready, reserved
    return 0 if op == "depth" else None


print(json.dumps({"stormproof": 1, "can": ["queues"], "port": 11300, "prefetch": 1}), flush=True)
for request in map(json.loads, sys.stdin):
    try:
        answer = {"ok": carry_out(**request)}
    except ConnectionRefusedError as error:
        answer = {"fail": str(error)}  # certainly not done
    except Exception as error:
        answer = {"error": repr(error)}  # it may have happened: the harness ends this program
    print(json.dumps({"id": request["id"], **answer}), flush=True)
