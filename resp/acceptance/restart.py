"""A lock in front of a server that is killed and started again."""

from __future__ import annotations

import socket
import uuid

from libraries import Library
from results import Results
from servers import HOST, Server

UNLOCK = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"


class Restart(Library):
    """Locks, kills all nodes with SIGKILL, starts them again, and unlocks."""

    def play(self, command: list[str], server: Server) -> Results:
        key, value = f"restart-{uuid.uuid4()}", str(uuid.uuid4())
        results, at = Results("-"), server.port
        taken = call(at, "SET", key, value, "NX", "PX", "60000")
        before = call(at, "RINGFENCE.TOKEN", key, value) if server.http else ""
        server.kill()
        server.start()
        answers = [
            ("it was free", taken, "+OK"),
            ("a second one is refused", call(at, "SET", key, "of another", "NX", "PX", "60000"), "$-1"),
            ("it has its token", call(at, "RINGFENCE.TOKEN", key, value) if server.http else "", before),
            ("it is released", call(at, "EVAL", UNLOCK, "1", key, value), ":1"),
            ("it is free", call(at, "GET", key), "$-1"),
        ]
        for what, answer, expected in answers:
            results.steps[what] = "" if answer == expected else f"got {answer}, want {expected}"
        return results


def call(port: int, *words: str) -> str:
    """The first line of the answer."""
    request = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    with socket.create_connection((HOST, port), 10) as connection, connection.makefile("rb") as answer:
        connection.sendall(request.encode())
        return answer.readline().decode(errors="replace").strip()
