"""What stands between a client and a node, and can be cut: then it swallows what is sent, and closes nothing."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Relay:
    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._is_cut = False
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._is_cut = True

    def close(self) -> None:
        for one in [self._listener, *self._sockets]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._to)
                self._sockets += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if not self._is_cut:
                    sink.sendall(data)
            if not self._is_cut:
                sink.shutdown(socket.SHUT_WR)
