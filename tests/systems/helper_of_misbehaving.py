"""What ``misbehaving.py`` needs: the server."""

SERVER = r'''
import asyncio, collections, sys

queues = collections.defaultdict(collections.deque)


async def serve(reader, writer):
    while line := await reader.readline():
        command, queue, *body = line.decode().rstrip("\n").split(" ", 2)
        if command == "put":
            queues[queue].append(body[0])
            answer = "ok"
        elif command == "get":
            answer = queues[queue].popleft() if queues[queue] else ""
        else:
            answer = str(len(queues[queue]))
        writer.write(answer.encode() + b"\n")
        await writer.drain()


async def main():
    async with await asyncio.start_server(serve, sys.argv[1], 7777) as server:
        await server.serve_forever()


asyncio.run(main())
'''
