"""A user's own file, as it could lie anywhere: a system, a workload, a fault and a check of theirs."""

import asyncio
import random

import numpy as np

import stormproof
from stormproof import generator
from stormproof.contracts.backend import KILL

SERVER = """
import asyncio, sys
async def main(host, port):
    async def echo(reader, writer):
        while line := await reader.readline():
            writer.write(line)
        writer.close()
    server = await asyncio.start_server(echo, host, int(port))
    print("up", flush=True)
    await server.serve_forever()
asyncio.run(main(*sys.argv[1:]))
"""


class Echo(stormproof.ShellSystem):
    """Gives back what it is given."""

    port = 4242
    provides = frozenset({"echo"})
    max_nodes = 3

    def files(self, machine):
        return {"server.py": SERVER}

    def command(self, machine, program):
        return [machine.cluster.backend.python(machine.name), "server.py", machine.address, str(self.port)]

    def connection(self, cluster):
        return None


class Says(stormproof.Workload):
    """Says something to each node and compares what comes back."""

    name = "says"
    needs = ("echo",)
    options = (stormproof.Option("talkers", 4, "threads that talk", load=True),)
    guarantees = ("parrot",)

    @classmethod
    def concurrency(cls, options):
        return options["talkers"]

    def client(self, cluster, thread, host):
        return Talker(cluster, thread, host)

    def main(self, test):
        said = generator.repeat(stormproof.Op("invoke", "say", value=7))
        return generator.clients(generator.time_limit(test.time_limit, generator.rate(test.rate, said, test.rng("r"))))


class Talker:
    def __init__(self, cluster, thread, host):
        self.cluster, self.thread, self.host = cluster, thread, host

    async def open(self):
        addresses = self.cluster.client_addresses()
        host, port = addresses[self.thread % len(addresses)]
        local = (self.cluster.backend.address(self.host), 0)
        self.reader, self.writer = await asyncio.open_connection(host, port, local_addr=local)

    async def invoke(self, op):
        self.writer.write(f"{op.value}\n".encode())
        line = await asyncio.wait_for(self.reader.readline(), 2)
        return op.ok(int(line)) if line else op.info("it hung up")

    async def close(self):
        self.writer.close()


class Stumble(stormproof.Fault):
    """Kills one node's program and starts it again at once."""

    name = "stumble"
    conflict_group = "process"
    undo = "start"
    needs = (KILL,)
    effects = frozenset({"ends process"})
    kinds = ("once",)

    def plan(self, kind, facts, rng: random.Random):
        return stormproof.FaultPlan(kind, (rng.choice(facts.eligible()),))

    async def inject(self, cluster, plan):
        (node,) = plan.targets
        before = await cluster.backend.process(node, "broker")
        await cluster.backend.kill(node, "broker")
        after = await cluster.backend.process(node, "broker")
        return stormproof.Evidence({"before": before.pid}, after.pid is None)

    async def heal(self, cluster, plan, injected):
        (node,) = plan.targets
        await cluster.start_node(node)
        return stormproof.Evidence({}, False)


class Parrot(stormproof.Check):
    """What came back is what was said."""

    name = "parrot"
    guarantee = "what comes back is what was said"
    anomaly = "misheard"
    decides = True

    def judge(self, run):
        history = run.history
        answers = np.flatnonzero(history.kind == 1)
        wrong = [int(row) for row in answers if history.value[row] != history.value[history.partner[row]]]
        found = tuple(stormproof.Anomaly("misheard", (int(history.index[row]),)) for row in wrong[:50])
        verdict = "invalid" if wrong else "valid"
        return stormproof.CheckOutcome(verdict, len(wrong), f"{len(answers)} answers, {len(wrong)} wrong", found)


if __name__ == "__main__":
    result = stormproof.run(Echo, Says, Stumble, checks=[Parrot], nodes=2, time_limit=5, seed=4,
                            settings={"fault_duration": 1}, store="from-python")  # fmt: skip
    print(result.verdict["verdict"], result.run_dir)
    print(stormproof.check("latest", store="from-python")["sentence"])
    print(len(stormproof.load("from-python").run("latest").history()))
